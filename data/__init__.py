"""Where examples come from: data sets as random-access sources of raw records."""

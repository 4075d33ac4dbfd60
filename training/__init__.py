"""An experiment, its compiled step, the run that takes it, and what they need."""

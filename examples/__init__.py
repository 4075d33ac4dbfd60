"""Jobs as one writes them without echo, the same with echo, and what it gains."""

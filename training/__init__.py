"""An experiment, its compiled step, and what they need: optimizer, sharding, memory checks."""

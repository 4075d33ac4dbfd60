"""The compiled step and what it needs: state, optimizer, sharding, evaluation."""

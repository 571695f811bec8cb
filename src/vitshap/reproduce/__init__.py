"""The paper, each table and figure by one command: what it printed, what has to be computed for it, and our numbers."""

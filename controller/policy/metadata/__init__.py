"""Which metadata server a key has, and the switches' tables that lead there: the paper's, and ours."""

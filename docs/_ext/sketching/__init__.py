"""The sketches of the algorithms' ideas, one function each."""

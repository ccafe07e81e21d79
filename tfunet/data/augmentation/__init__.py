"""Random changes of training samples: movements, grey values, and the random numbers behind them."""

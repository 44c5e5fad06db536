"""Reading the data of a page: reports, the chain behind them, and the array files next to them."""

"""From reports on disk to what a page shows: the chain behind them, and the arrays that lie beside them."""

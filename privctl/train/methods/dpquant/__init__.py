"""DPQuant: which layers an epoch of private training computes in few bits, and the private measurements that say it."""

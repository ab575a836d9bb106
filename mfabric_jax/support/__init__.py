"""What every room may use: arrays, files, programs, checks of what a computer has. It knows nothing of fabrics."""

"""Supervision of long runs, for T5X and Pax alike.

It handles stop signals, bad losses, hanging, lost and slow processes, and damaged checkpoints.
"""

import time

# When this process started, or a moment later: the package is imported before JAX.
PROCESS_START = time.time()

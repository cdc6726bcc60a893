"""What keeps a long run well, in T5X and Pax alike: stop signals, bad losses, hanging and slow
processes, checkpoints that are worth keeping.
"""

import time

PROCESS_START = time.time()  # of this process, or nearly: it is imported before JAX

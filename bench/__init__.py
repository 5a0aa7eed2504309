import os

from chatcache.openmp import let_threads_wait_awake_briefly

let_threads_wait_awake_briefly(os.environ)  # as app.py does, before anything imports torch

"""Reuse from GPU memory that the daemon lends, for a model on the same GPU.

`Lent` leases the copies that exist on the GPU, and releases each copy once the engine's stream has
passed its use. `Placing` runs the daemon's kernels on that stream: it writes keys and values into
the rows of a context, and composes segments with the context's states. `Writing` lets the daemon
write them itself, into memory that is `Registered` with the daemon. `Reader` attends over rows in
place. Segments without a copy on the GPU are read from host memory.
"""

from spliced_connector.hf.device.lent import Lent
from spliced_connector.hf.device.placing import Placing
from spliced_connector.hf.device.reader import Reader
from spliced_connector.hf.device.registered import Registered
from spliced_connector.hf.device.written import Remote, Writing

__all__ = ["Lent", "Placing", "Reader", "Registered", "Remote", "Writing"]

"""Reuse from GPU memory that the daemon lends, for a model on the same GPU.

`Lent` leases copies there, if any, and releases them after the engine's stream. `Placing` places
leased segments with the daemon's kernels, on that stream and in the engine's own tensors: keys
and values in the rows of a context, transitions onto its running states. `Writing` has the daemon
do that itself, in memory that is `Registered` with it. `Reader` attends over rows in place.
Segments that are not there yet are read from host memory.
"""

from spliced_connector.hf.device.lent import Lent
from spliced_connector.hf.device.placing import Placing
from spliced_connector.hf.device.reader import Reader
from spliced_connector.hf.device.registered import Registered
from spliced_connector.hf.device.written import Remote, Writing

__all__ = ["Lent", "Placing", "Reader", "Registered", "Remote", "Writing"]

"""Reuse from memory of the GPU that the daemon lends, where the model lies on the same GPU.

`Lent` says whether there is any, leases copies there and gives them back behind the engine's
stream; `Placing` has the daemon's kernels put leased segments in place, on that stream and in the
engine's own tensors: keys and values into the rows of a context, transitions onto its running
states; `Writing` has the daemon do that itself, in memory that is `Registered` with it; `Reader`
attends over rows where they lie. What is not there, or not there yet, the caller
takes from host memory.
"""

from spliced_connector.hf.device.lent import Lent
from spliced_connector.hf.device.placing import Placing
from spliced_connector.hf.device.reader import Reader
from spliced_connector.hf.device.registered import Registered
from spliced_connector.hf.device.written import Remote, Writing

__all__ = ["Lent", "Placing", "Reader", "Registered", "Remote", "Writing"]

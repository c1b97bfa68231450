"""Reuse from memory of the GPU that the daemon lends, where the model lies on the same GPU.

`Lent` says whether there is any, leases copies there and gives them back behind the engine's
stream; `Placing` has the daemon's kernels put leased segments in place, on that stream and in the
engine's own tensors: keys and values into the rows of a context, transitions onto its running
states; `Reader` attends over rows where they lie. What is not there, or not there yet, the caller
takes from host memory.
"""

from spliced_connector.hf.device.lent import Lent
from spliced_connector.hf.device.placing import Placing
from spliced_connector.hf.device.reader import Reader

__all__ = ["Lent", "Placing", "Reader"]

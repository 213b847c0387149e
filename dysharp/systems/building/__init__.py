"""Building blocks of systems: what a plan function puts together. No module here registers a system."""

from dysharp.systems.building.batch import Batch, Sends, Transfers, placed
from dysharp.systems.building.between.deepep_internode import HybridInternode, Internode, pairs_of_sms
from dysharp.systems.building.between.rails import by_rails
from dysharp.systems.building.between.two_hop import TwoHop
from dysharp.systems.building.exchanges import CommStream, Group, NcclStream, collective, in_groups, stream_order
from dysharp.systems.building.experts import as_tiles_fill, blocks_in_order, fused, in_pairs, one_after_another, stages
from dysharp.systems.building.formats import ROWS_OR_FP8, check
from dysharp.systems.building.layer import DYMULTIMEM, MULTIMEM, STORE, Kernels, LayerBuilder
from dysharp.systems.building.paper_layers import ROWS, WIRE, mediate, sorted_at_receiver
from dysharp.systems.building.software_steps import SoftwareSteps

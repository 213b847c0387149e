"""One file per measured family, or per families that share a case; `measured.family` finds them by scanning. What most of them need is here."""

from dysharp.measured.family import Case, Constants, family
from dysharp.measured.measurements import CLUSTERS, Measurement, Unsupported, check_cluster, dtype_of, gpu_of, label, number, spans_domains, whole

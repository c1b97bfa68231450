package settings

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// setting is one field of Config as a flag, an environment variable and a key
// of the YAML file.
type setting struct {
	name  string     // of the flag: max-connections
	value flag.Value // sets and prints the field
	bound string     // unit and range, for operators
	zero  string     // meaning of the zero or empty value
	about string
}

func (s *setting) env() string { return "SPLICED_" + strings.ToUpper(s.key()) }
func (s *setting) key() string { return strings.ReplaceAll(s.name, "-", "_") }

// settings lists the fields of c in the order of the documentation.
func (c *Config) settings() []setting {
	list := []setting{
		{"socket", (*text)(&c.Socket), "path, at most 102 bytes", "the first of /run/spliced, $XDG_RUNTIME_DIR/spliced and /tmp/spliced-UID that can be made, and spliced.sock in it",
			"Socket that engines connect to. A missing directory is made: mode 2750, the default ones below $XDG_RUNTIME_DIR and /tmp 0700. One in which others may write is refused, unless it has the sticky bit."},
		{"allow-uids", &c.AllowUIDs, "list of user ids", "see allow-gids",
			"Users that may connect. Our own user and root always may."},
		{"allow-gids", &c.AllowGIDs, "list of group ids", "with allow-uids empty too: members of the socket directory's group; else nobody by group",
			"Groups whose members, primary or supplementary, may connect."},
		{"admin-socket", (*text)(&c.AdminSocket), "path, at most 102 bytes, or off", "admin/admin.sock beside the engine socket",
			"Admin REST with mutations and profiling, mode 0600. A missing directory is made, mode 0700; one in which others may write is refused."},
		{"http", (*text)(&c.HTTP), "HOST:PORT, or off", "not allowed",
			"Admin REST, read only unless a token is set. Health is open, metrics too without admin-read-token-file. The rest needs a token off loopback, and over loopback as soon as one is set."},
		{"http-hosts", &c.HTTPHosts, "list of lower-case host names", "only localhost and addresses",
			"Names under which the admin REST may be called, by browsers and others: what else stands in Host is refused, but for health and metrics."},
	}
	list = append(list, c.adminSettings()...)
	list = append(list, []setting{
		{"node", (*text)(&c.Node), "1 to 256 bytes", "the host's name",
			"Name of this node in answers and logs."},

		{"arena", &c.Arena, "bytes, one page to 64TiB", "a quarter of the memory limit, at most 4GiB",
			"Public pool: segments. Where, with private, it exceeds the memory limit (cgroup and MemAvailable), both are cut to three quarters of that, and readiness says degraded."},
		{"private", &c.Private, "bytes, one page to 64TiB", "an eighth of the memory limit, at most 2GiB",
			"Private pool: checkpoints."},
		{"page-bytes", &c.PageBytes, "bytes, a power of two, 4KiB to 16MiB", "not allowed",
			"Allocation unit of both pools and of slots."},
		{"huge-pages", (*text)(&c.HugePages), "auto, never or require", "not allowed",
			"Whether the arena asks for huge pages."},
		{"staging", &c.Staging, "bytes, 64KiB to staging-max", "64MiB, at most a sixteenth of connection-memory",
			"Staging memory of a connection that does not ask for a size. Taken when touched."},
		{"staging-max", &c.StagingMax, "bytes, 64KiB to 1TiB", "not allowed",
			"Most staging memory that one connection gets."},
		{"slots", &c.Slots, "bytes, one page to slots-max", "256MiB, at most an eighth of connection-memory",
			"Slot memory of a connection that does not ask for a size. Taken when touched."},
		{"slots-max", &c.SlotsMax, "bytes, one page to 1TiB", "not allowed",
			"Most slot memory that one connection gets."},
		{"connection-memory", &c.ConnectionMemory, "bytes, staging + slots to 64TiB", "three eighths of the memory limit",
			"Bound on what connections may make the daemon hold: staging, slots and what mapping registered memory costs (a 512th; all of it where the daemon may not use userfaultfd). Beyond it a hello or profile is answered full. Connections of one user get three quarters of it together, registered memory half of that. A connection that wishes for more than the defaults gets at most half of what is left."},

		{"hbm-public", &c.HBMPublic, "bytes, one hbm-page to 4TiB", "no copies of segments on a GPU",
			"Memory of each GPU for copies of segments, beside those in memory and on disk. With 0B here and in hbm-private no driver is loaded. A GPU that cannot be used costs the copies, not the start."},
		{"hbm-private", &c.HBMPrivate, "bytes, one hbm-page to 4TiB", "no copies of checkpoints on a GPU",
			"The same for checkpoints."},
		{"hbm-page-bytes", &c.HBMPageBytes, "bytes, a power of two, 4KiB to 16MiB", "not allowed",
			"Allocation unit of these pools and of slots on the GPU."},
		{"hbm-client", &c.HBMClient, "bytes, 256KiB and one hbm-page to 1TiB", "not allowed",
			"Memory of its GPU that is an attached client's own, for slots and what it writes for compose; most that it gets, and what it gets when it does not ask for a size."},
		{"hbm-connections", &c.HBMConnections, "bytes, hbm-client to 4TiB", "not allowed",
			"Bound on that of all connections together on each GPU, each rounded up to the pages of the GPU (2MiB as a rule); beyond it an attach-device is answered full."},
		{"hbm-device", &c.HBMDevices, "all, or a list of UUIDs, as in GPU-8a2f4c1e-..., or numbers of the driver's", "the only GPU, of several the first",
			"GPUs to use, each with the budgets above. nvidia-smi -L lists them; the driver's numbers are those of this process, which CUDA_VISIBLE_DEVICES and container runtimes change. One that cannot be used costs its own copies."},
		{"hbm-library", (*text)(&c.HBMLibrary), "path of a library", "libcuda.so.1 as the dynamic linker finds it",
			"Driver to load."},
		{"hbm-share", (*text)(&c.HBMShare), "auto, descriptor or handle", "not allowed",
			"How clients get at the GPU's memory: a descriptor for each chunk, or a CUDA IPC handle for each allocation, which needs PID values that differ; auto takes descriptors where the GPU has them."},
		{"hbm-ahead", (*toggle)(&c.HBMAhead), "on or off", "not allowed",
			"Whether what a match finds in memory is copied to the GPU before anybody asks for it, for engines that read there."},
		{"hbm-timeout", (*interval)(&c.HBMTimeout), "10ms to 1m", "not allowed",
			"How long the driver may take to open or close memory of another process before the daemon goes on without the answer; 30 times that to open or close the GPU."},

		{"disk", (*text)(&c.Disk), "path of a directory, at most 3840 bytes", "no disk tier",
			"Directory of the disk tier, for one daemon. It is made when its parent is there. A directory that cannot be used costs hits, not the start: the daemon serves from memory, says why, and tries again."},
		{"disk-create", (*toggle)(&c.DiskCreate), "on or off", "not allowed",
			"Whether a directory that is empty, or not there, becomes that of a new disk tier at the start. Off, for a disk that is mounted: then the tier is missing until the directory is there that was. Once one was open none is made in its place before the next start."},
		{"disk-size", &c.DiskSize, "bytes, two granules to 1024TiB", "not allowed",
			"Budget of segments on disk. Files are made one disk-slab at a time, as they are needed."},
		{"disk-private", &c.DiskPrivate, "bytes, 0B to 1024TiB", "checkpoints stay in memory",
			"Budget of checkpoints on disk."},
		{"disk-slab", &c.DiskSlab, "bytes, two granules to 1TiB", "not allowed",
			"Size of a slab file, allocated when it is made; less where the budgets are."},
		{"disk-granule", &c.DiskGranule, "bytes, a power of two, 4KiB to 1MiB", "not allowed",
			"What space on disk is given in: an entry wastes less than one. Slab files of another granule are not used."},
		{"disk-reserve", &c.DiskReserve, "bytes, 0B to 1024TiB", "the file system may be filled",
			"What the file system keeps free: no slab file is made that would take it."},
		{"disk-codec", (*text)(&c.DiskCodec), "none, kv or all", "not allowed",
			"Which parts are stored coded, without loss: none, keys and values, or states and transitions too. Takes a core about a second per GB and saves about 30 % of bf16 values, so it pays where space is scarce or the disk slow."},
		{"disk-workers", (*integer)(&c.DiskWorkers), "1 to 256", "not allowed",
			"Objects written at once, and again read at once."},
		{"disk-queue", &c.DiskQueue, "bytes, 1MiB to 64TiB", "not allowed",
			"Objects that wait to be written, or are being; they stay in memory meanwhile. Beyond it writes are put off."},
		{"disk-sync-every", (*interval)(&c.DiskSyncEvery), "10ms to 1h", "not allowed",
			"How long what is logged may wait to be synced."},
		{"ack-level", (*text)(&c.AckLevel), "memory, logged or synced; above memory only with a disk", "not allowed",
			"How safe an object is before its commit is answered, where the commit does not say."},
		{"write-behind", (*toggle)(&c.WriteBehind), "on or off", "not allowed",
			"Whether every published object is written to disk at once, in the background. Off: when memory fills up, and at the stop."},
		{"read-ahead", (*toggle)(&c.ReadAhead), "on or off", "not allowed",
			"Whether what a match finds on disk is read into memory before anybody asks for it."},
		{"memory-high", (*integer)(&c.MemoryHigh), "percent of a pool, 1 to 100", "not allowed",
			"Use of a pool above which objects that are only in memory are written to disk, least valuable first."},
		{"memory-low", (*integer)(&c.MemoryLow), "percent of a pool, 1 to memory-high", "not allowed",
			"Use at which that ends: what could be dropped without loss counts as free."},
		{"promote-timeout", (*interval)(&c.PromoteTimeout), "1ms to 1h", "not allowed",
			"How long an acquire or load waits for what lies on disk; seven eighths of its own deadline if that is less. What is not there by then is a miss."},

		{"eviction", (*text)(&c.Eviction), "lru, gdsf, marconi or default", "not allowed",
			"What leaves a full pool of memory (a disk goes by the last use): lru, the least recently used; gdsf, the least milliseconds saved per byte by age; marconi, the least utility of Marconi (alpha 0.1); default, the lowest hazard index: how likely an object is to be used again, learnt from its kind and age, times the milliseconds saved per byte."},
		{"eviction-public", (*text)(&c.EvictionPublic), "as eviction", "as eviction",
			"The same for segments only."},
		{"eviction-private", (*text)(&c.EvictionPrivate), "as eviction", "as eviction",
			"The same for checkpoints only."},
		{"advise-memory", &c.AdviseMemory, "bytes, 64KiB to 1TiB", "no prompt is remembered: advice knows boundaries and costs only",
			"Memory of what prompts looked like, over all tenants, beside the pools; about 4.3 bytes a token. Beyond it those that nobody came back to are forgotten, of tenants that hold more than an equal part. What is learned of each tenant of each profile beside the tree takes up to 0.3 MB more."},
		{"advise-nodes", (*integer)(&c.AdviseNodes), "64 to 16777216", "not allowed",
			"Places where prompts part or end that are remembered, over all tenants."},
		{"advise-checkpoints", (*integer)(&c.AdviseCheckpoints), "1 to 1024", "not allowed",
			"Checkpoints of one prompt that are advised when the client does not say."},
		{"advise-solve-every", (*integer)(&c.AdviseSolveEvery), "1 to 1000000", "not allowed",
			"Prompts of a tenant and profile after which checkpoints are placed anew."},
		{"decisions", (*integer)(&c.Decisions), "1 to 1048576", "not allowed",
			"Last decisions that can be told: what was admitted, refused or evicted, and why; a quarter of them for advice. About 200 bytes each."},
		{"prefill-speed", (*integer)(&c.PrefillSpeed), "tokens a second, 0 to 1000000000", "20000",
			"How fast the engine computes prompts, until it tells what it measured. Decides at first what is worth storing."},
		{"memory-bandwidth", &c.MemoryBandwidth, "bytes a second, 0B to 1024TiB", "8GB",
			"How fast an engine reads what lies in memory."},
		{"disk-bandwidth", &c.DiskBandwidth, "bytes a second, 0B to 1024TiB", "1GB",
			"How fast the disk is read, until that was measured."},

		{"max-connections", (*integer)(&c.MaxConnections), "1 to 4096", "not allowed",
			"Connections at once. One more is told busy and closed. One user gets seven eighths of them at most, and where there are too few threads they are fewer."},
		{"max-in-flight", (*integer)(&c.MaxInFlight), "1 to 1024", "not allowed",
			"Unanswered requests of one connection; one more is answered busy."},
		{"max-leases", (*integer)(&c.MaxLeases), "1 to 1048576", "not allowed",
			"Leases of one connection on segments and checkpoints, and as many slots."},
		{"max-reservations", (*integer)(&c.MaxReservations), "1 to 65536", "not allowed",
			"Open reservations of one connection."},
		{"max-profiles", (*integer)(&c.MaxProfiles), "1 to 4096", "not allowed",
			"Registered profiles. One that no connection uses makes room for another, with what memory holds of it: first one that is empty, then the one left longest ago. A connection gets a quarter of the places, a user three, a tenant half where there are others."},
		{"workers", (*integer)(&c.Workers), "1 to 1024", "one per CPU",
			"Threads that copy, compose and rotate."},

		{"request-timeout", (*interval)(&c.RequestTimeout), "1ms to max-request-timeout", "not allowed",
			"Deadline of a request that names none."},
		{"max-request-timeout", (*interval)(&c.MaxRequestTimeout), "1ms to 1h", "not allowed",
			"Longest deadline; what a request names beyond it is cut."},
		{"hello-timeout", (*interval)(&c.HelloTimeout), "10ms to 1m", "not allowed",
			"Time a new connection has for its hello."},
		{"send-timeout", (*interval)(&c.SendTimeout), "1ms to 1m", "not allowed",
			"How long a reply may wait for a client that does not read before the client is dropped."},
		{"drain-timeout", (*interval)(&c.DrainTimeout), "0s to 10m", "running work is stopped at once, nothing more is written to disk",
			"How long running work may go on when the daemon stops, and again how long what is only in memory is written to disk."},
		{"lease-ttl", (*interval)(&c.LeaseTTL), "1s to 24h", "not allowed",
			"Life of a lease whose request names none; a backstop, since leases end with their connection."},
		{"max-lease-ttl", (*interval)(&c.MaxLeaseTTL), "lease-ttl to 24h", "not allowed",
			"Longest life of a lease; a request for a longer one is refused."},
		{"fill-ttl", (*interval)(&c.FillTTL), "1s to 24h", "not allowed",
			"Time from a reservation to its last commit."},

		{"log-level", (*text)(&c.LogLevel), "trace, debug, info, warn, error or disabled", "not allowed",
			"Least level that is logged, to standard error."},
		{"log-format", (*text)(&c.LogFormat), "json or console", "not allowed",
			"Form of log lines."},
	}...)
	return slices.Concat(list, c.clusterSettings(), c.objectSettings(), c.eventsSettings(), c.tracingSettings())
}

// text, toggle, integer, interval, address, idList and nameList implement flag.Value for fields.
type (
	text     string
	toggle   bool
	integer  int
	interval time.Duration
	idList   []uint32
	nameList []string
)

func (t *text) String() string         { return string(*t) }
func (t *text) Set(s string) error     { *t = text(s); return nil }
func (i *integer) String() string      { return strconv.Itoa(int(*i)) }
func (d *interval) String() string     { return time.Duration(*d).String() }
func (l *nameList) String() string     { return strings.Join(*l, ",") }
func (l *nameList) Set(s string) error { *l = splitList(s); return nil }

func (t *toggle) String() string {
	if *t {
		return "on"
	}
	return "off"
}

func (t *toggle) Set(s string) error {
	switch strings.TrimSpace(s) {
	case "on":
		*t = true
	case "off":
		*t = false
	default:
		return fmt.Errorf("%q is neither on nor off", s)
	}
	return nil
}

func (i *integer) Set(s string) error {
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err == nil {
		*i = integer(n)
	}
	return err
}

func (d *interval) Set(s string) error {
	v, err := time.ParseDuration(strings.TrimSpace(s))
	if err == nil {
		*d = interval(v)
	}
	return err
}

func (l *idList) String() string {
	var names []string
	for _, id := range *l {
		names = append(names, strconv.FormatUint(uint64(id), 10))
	}
	return strings.Join(names, ",")
}

func (l *idList) Set(s string) error {
	var ids []uint32
	for _, name := range splitList(s) {
		id, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return err
		}
		ids = append(ids, uint32(id))
	}
	*l = ids
	return nil
}

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

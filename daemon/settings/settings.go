package settings

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/tiering/advise"
)

// setting is one field of Config as a flag, an environment variable and a key
// of the YAML file.
type setting struct {
	name string // name of the flag, such as max-connections
	field
	zero  string // meaning of the zero or empty value
	about string
}

func (s *setting) env() string { return "SPLICED_" + strings.ToUpper(s.key()) }
func (s *setting) key() string { return strings.ReplaceAll(s.name, "-", "_") }

// settings lists the settings of c, in the order of the documentation. Values must be in range even
// if their feature is off, so that switching it on cannot reveal such errors. Settings of GPUs are
// compared with each other only if a GPU is used.
func (c *Config) settings() []setting {
	page, hbmPage, granule := unitOf(c.PageBytes, maxPage), unitOf(c.HBMPageBytes, maxPage), unitOf(c.DiskGranule, maxGranule)
	leastClient, leastConnections := LeastHBMClient+leastUnit, Bytes(0)
	if c.UsesHBM() {
		leastClient, leastConnections = LeastHBMClient+hbmPage, c.HBMClient
	}
	list := []setting{
		{"socket", limited(&c.Socket, maxSocket).as("path, %s"), "the first of /run/spliced, $XDG_RUNTIME_DIR/spliced and /tmp/spliced-UID that can be created, with spliced.sock in it",
			"Socket that engines connect to. A missing directory is created with mode 2750; the defaults below $XDG_RUNTIME_DIR and /tmp get 0700. A directory that others may write to is refused unless it has the sticky bit."},
		{"allow-uids", free(&c.AllowUIDs, "list of user ids"), "see allow-gids",
			"Users that may connect, besides root and the daemon's own user."},
		{"allow-gids", free(&c.AllowGIDs, "list of group ids"), "with allow-uids empty too: members of the socket directory's group; else no group",
			"Groups whose members, primary or supplementary, may connect."},
		{"admin-socket", limited(&c.AdminSocket, maxSocket).as("path, %s, or off"), "admin/admin.sock beside the engine socket",
			"Socket of the admin REST with mutations and profiling, mode 0600. A missing directory is created with mode 0700; one that others may write to is refused."},
		{"http", free((*text)(&c.HTTP), "HOST:PORT, or off"), "not allowed",
			"Address of the admin REST, read-only unless a token is set. Health needs no token, nor do metrics without admin-read-token-file. Other routes need one off loopback, and on loopback once one is set."},
		{"http-hosts", free(&c.HTTPHosts, "list of lower-case host names"), "only localhost and addresses",
			"Host names accepted in the Host header of admin REST requests. Requests with another name are refused, except for health and metrics."},
	}
	list = append(list, c.adminSettings()...)
	list = append(list, []setting{
		{"node", limited(&c.Node, wire.MaxName).as("1 to 256 bytes"), "the host's name",
			"Name of this node in answers and logs."},

		{"arena", size(&c.Arena, page, 64*TiB).as("bytes, one page to 64TiB").with("page-bytes"), "a quarter of the memory limit, at most 4GiB",
			"Size of the public pool, for segments. If both pools together exceed the memory limit (cgroup and MemAvailable), they are reduced to three quarters of it and readiness reports degraded."},
		{"private", size(&c.Private, page, 64*TiB).as("bytes, one page to 64TiB").with("page-bytes"), "an eighth of the memory limit, at most 2GiB",
			"Size of the private pool, for checkpoints."},
		{"page-bytes", unit(&c.PageBytes, maxPage), "not allowed",
			"Allocation unit of both pools and of slots."},
		{"huge-pages", choice(&c.HugePages, "auto", "never", "require"), "not allowed",
			"Whether the arena uses huge pages."},
		{"staging", size(&c.Staging, 64*KiB, c.StagingMax).as("bytes, 64KiB to staging-max").with("staging-max"), "64MiB, at most a sixteenth of connection-memory",
			"Staging memory of a connection that requests no size. Allocated on first use."},
		{"staging-max", size(&c.StagingMax, 64*KiB, TiB), "not allowed",
			"Maximum staging memory of a connection."},
		{"slots", size(&c.Slots, page, c.SlotsMax).as("bytes, one page to slots-max").with("slots-max", "page-bytes"), "256MiB, at most an eighth of connection-memory",
			"Slot memory of a connection that requests no size. Allocated on first use."},
		{"slots-max", size(&c.SlotsMax, page, TiB).as("bytes, one page to 1TiB").with("page-bytes"), "not allowed",
			"Maximum slot memory of a connection."},
		{"connection-memory", size(&c.ConnectionMemory, c.Staging+c.Slots, 64*TiB).as("bytes, staging + slots to 64TiB").with("staging", "slots", "page-bytes"), "three eighths of the memory limit",
			"Limit on memory held for all connections: staging, slots and the cost of mapping registered memory (1/512 of it; all of it if the daemon may not use userfaultfd). Beyond it a hello or profile is answered full. Connections of one user get at most three quarters of it, and half of that for registered memory. A connection that asks for more than the defaults gets at most half of the remainder."},

		{"hbm-public", size(&c.HBMPublic, hbmPage, 4*TiB).as("bytes, one hbm-page to 4TiB").unless(c.HBMPublic == 0).with("hbm-page-bytes"), "no copies of segments on a GPU",
			"Memory of each GPU for copies of segments, which also stay in memory or on disk. If this and hbm-private are 0B, no driver is loaded. If a GPU cannot be used, the daemon starts without copies on it."},
		{"hbm-private", size(&c.HBMPrivate, hbmPage, 4*TiB).as("bytes, one hbm-page to 4TiB").unless(c.HBMPrivate == 0).with("hbm-page-bytes"), "no copies of checkpoints on a GPU",
			"Memory of each GPU for copies of checkpoints."},
		{"hbm-page-bytes", unit(&c.HBMPageBytes, maxPage), "not allowed",
			"Allocation unit of the GPU pools and of slots on the GPU."},
		{"hbm-client", size(&c.HBMClient, leastClient, TiB).as("bytes, 256KiB and one hbm-page to 1TiB").with("hbm-page-bytes"), "not allowed",
			"GPU memory of an attached client, for slots and for data it writes for compose: the maximum, and the default if it requests no size."},
		{"hbm-connections", size(&c.HBMConnections, leastConnections, 4*TiB).as("bytes, hbm-client to 4TiB").with("hbm-client"), "not allowed",
			"Limit on the client memory of all connections on each GPU, each rounded up to the GPU's page size (usually 2MiB). Beyond it an attach-device is answered full."},
		{"hbm-device", free(&c.HBMDevices, "all, or a list of UUIDs, as in GPU-8a2f4c1e-..., or of the driver's numbers"), "the only GPU; of several, the first",
			"GPUs to use, each with the budgets above. nvidia-smi -L lists UUIDs; driver numbers are as this process sees them, which CUDA_VISIBLE_DEVICES and container runtimes change. A GPU that cannot be used is skipped."},
		{"hbm-library", path(&c.HBMLibrary, "path of a library"), "libcuda.so.1 as the dynamic linker finds it",
			"Driver library to load."},
		{"hbm-share", choice(&c.HBMShare, "auto", "descriptor", "handle"), "not allowed",
			"How GPU memory is shared with clients: as a descriptor per chunk, or as a CUDA IPC handle per allocation, which requires different PID values. auto uses descriptors where the GPU supports them."},
		{"hbm-ahead", onOff(&c.HBMAhead), "not allowed",
			"Whether objects that a match finds in memory are copied to the GPU in advance, for engines that read there."},
		{"hbm-timeout", duration(&c.HBMTimeout, 10*time.Millisecond, time.Minute), "not allowed",
			"Timeout for driver calls that open or close another process's memory; 30 times that for opening or closing the GPU. The daemon then goes on without the answer."},

		{"disk", path(&c.Disk, "path of a directory, %s"), "no disk tier",
			"Directory of the disk tier, used by one daemon only. It is created if its parent exists. If it cannot be used, the daemon serves from memory, reports the reason and retries."},
		{"disk-create", onOff(&c.DiskCreate), "not allowed",
			"Whether a missing or empty directory is initialised as a new disk tier at the start. Switch it off for a mounted disk: the tier then stays unavailable until its directory is back. A tier that was once open is never replaced by a new one before the next start."},
		{"disk-size", size(&c.DiskSize, 2*granule, 1024*TiB).as("bytes, two granules to 1024TiB").with("disk-granule"), "not allowed",
			"Disk budget of segments. Files are created one disk-slab at a time, as needed."},
		{"disk-private", size(&c.DiskPrivate, 0, 1024*TiB), "checkpoints stay in memory",
			"Disk budget of checkpoints."},
		{"disk-slab", size(&c.DiskSlab, 2*granule, TiB).as("bytes, two granules to 1TiB").with("disk-granule"), "not allowed",
			"Size of a slab file, allocated when the file is created. The size is reduced if the disk budgets are smaller."},
		{"disk-granule", unit(&c.DiskGranule, maxGranule), "not allowed",
			"Allocation unit on disk; each object wastes less than one unit. Slab files with a different granule are not used."},
		{"disk-reserve", size(&c.DiskReserve, 0, 1024*TiB), "the file system may be filled",
			"Free space to leave on the file system. No slab file is created that would use it."},
		{"disk-codec", choice(&c.DiskCodec, "none", "kv", "all"), "not allowed",
			"Which parts are stored with lossless compression: none; kv, keys and values; all, states and transitions too. It takes about a core-second per GB and saves about 30 % of bf16 values, so it pays off when space is scarce or the disk slow."},
		{"disk-workers", count(&c.DiskWorkers, 1, 256), "not allowed",
			"Maximum number of objects written to disk concurrently, and also of objects read concurrently."},
		{"disk-queue", size(&c.DiskQueue, MiB, 64*TiB), "not allowed",
			"Maximum size of objects queued for writing or being written, which stay in memory meanwhile. Beyond it writes are deferred."},
		{"disk-sync-every", duration(&c.DiskSyncEvery, 10*time.Millisecond, time.Hour), "not allowed",
			"Maximum time until a change written to disk is synced, so that it survives power loss."},
		{"ack-level", choice(&c.AckLevel, "memory", "logged", "synced").as("%s; above memory only with a disk"), "not allowed",
			"Default durability of an object before its commit is acknowledged, if the commit names none."},
		{"write-behind", onOff(&c.WriteBehind), "not allowed",
			"Whether every published object is written to disk immediately, in the background. If off, objects are written when memory fills up and when the daemon stops."},
		{"read-ahead", onOff(&c.ReadAhead), "not allowed",
			"Whether objects that a match finds on disk are read into memory in advance."},
		{"memory-high", count(&c.MemoryHigh, 1, 100).as("percent of a pool, %s"), "not allowed",
			"Pool use above which objects that are only in memory are written to disk, least valuable first."},
		{"memory-low", count(&c.MemoryLow, 1, c.MemoryHigh).as("percent of a pool, 1 to memory-high").with("memory-high"), "not allowed",
			"Pool use at which these writes stop. Objects that can be dropped without loss count as free."},
		{"promote-timeout", duration(&c.PromoteTimeout, time.Millisecond, time.Hour), "not allowed",
			"How long an acquire or load waits for objects on disk or on other nodes, at most seven eighths of its own deadline. Objects that have not arrived by then are misses."},

		{"eviction", eviction(&c.Eviction, "lru, gdsf, marconi or default"), "not allowed",
			"Eviction policy of the memory pools (the disk always uses LRU): lru, least recently used; gdsf, fewest milliseconds saved per byte, with aging; marconi, least utility by Marconi (alpha 0.1); default, lowest hazard index: the probability of another use, learned from kind and age, times the milliseconds saved per byte."},
		{"eviction-public", eviction(&c.EvictionPublic, "as eviction").unless(c.EvictionPublic == ""), "as eviction",
			"Eviction policy for segments."},
		{"eviction-private", eviction(&c.EvictionPrivate, "as eviction").unless(c.EvictionPrivate == ""), "as eviction",
			"Eviction policy for checkpoints."},
		{"advise-memory", size(&c.AdviseMemory, 64*KiB, TiB).unless(c.AdviseMemory == 0), "no prompts are remembered; advice only knows boundaries and costs",
			"Memory for the tree of past prompts, over all tenants, outside the pools; about 4.3 bytes per token. If it is full, prompts that were not reused are forgotten, first those of tenants that use more than an equal share. Data learned for each tenant and profile takes up to 0.3 MB more."},
		{"advise-nodes", count(&c.AdviseNodes, 64, 1<<24), "not allowed",
			"Maximum number of branch points and ends of prompts to remember, over all tenants."},
		{"advise-checkpoints", count(&c.AdviseCheckpoints, 1, advise.MaxPositions), "not allowed",
			"Maximum number of checkpoints to advise for a prompt, if the client names none."},
		{"advise-solve-every", count(&c.AdviseSolveEvery, 1, 1_000_000), "not allowed",
			"Number of prompts of a tenant and profile after which checkpoint placement is recomputed."},
		{"decisions", count(&c.Decisions, 1, 1<<20), "not allowed",
			"Number of recent decisions to keep for queries: admissions, refusals and evictions with their reasons; a quarter of them for advice. About 200 bytes each."},
		{"prefill-speed", count(&c.PrefillSpeed, 0, 1_000_000_000).as("tokens per second, %s"), "20000",
			"Initial prefill speed, until the engine reports measurements. Used to decide what is worth storing."},
		{"memory-bandwidth", size(&c.MemoryBandwidth, 0, 1024*TiB).as("bytes per second, 0B to 1024TiB"), "8GB",
			"Assumed speed at which an engine reads objects in memory."},
		{"disk-bandwidth", size(&c.DiskBandwidth, 0, 1024*TiB).as("bytes per second, 0B to 1024TiB"), "1GB",
			"Initial read speed of the disk, until it is measured."},

		{"max-connections", count(&c.MaxConnections, 1, 4096), "not allowed",
			"Maximum number of connections; one more is answered busy and closed. One user gets at most seven eighths of them. The limit is lower if there are too few threads."},
		{"max-in-flight", count(&c.MaxInFlight, 1, 1024), "not allowed",
			"Maximum number of unanswered requests per connection; one more is answered busy."},
		{"max-leases", count(&c.MaxLeases, 1, 1<<20), "not allowed",
			"Maximum number of leases per connection on segments and checkpoints, and of slots."},
		{"max-reservations", count(&c.MaxReservations, 1, 1<<16), "not allowed",
			"Maximum number of open reservations per connection."},
		{"max-profiles", count(&c.MaxProfiles, 1, 4096), "not allowed",
			"Maximum number of registered profiles. When it is reached, a profile without connections is replaced and its objects dropped from memory: first one without objects, then the one unused longest. One connection gets at most a quarter of the places, a user three quarters, a tenant half while there are others."},
		{"workers", count(&c.Workers, 1, 1024), "one per CPU",
			"Number of threads that copy, compose and rotate objects in memory."},

		{"request-timeout", duration(&c.RequestTimeout, time.Millisecond, c.MaxRequestTimeout).as("1ms to max-request-timeout").with("max-request-timeout"), "not allowed",
			"Deadline of a request that sets none."},
		{"max-request-timeout", duration(&c.MaxRequestTimeout, time.Millisecond, time.Hour), "not allowed",
			"Maximum deadline of a request; longer ones are reduced to it."},
		{"hello-timeout", duration(&c.HelloTimeout, 10*time.Millisecond, time.Minute), "not allowed",
			"Time within which a new connection must send its hello."},
		{"send-timeout", duration(&c.SendTimeout, time.Millisecond, time.Minute), "not allowed",
			"How long a reply may wait for a client that does not read; then the client is disconnected."},
		{"drain-timeout", duration(&c.DrainTimeout, 0, 10*time.Minute), "running work is stopped at once and nothing more is written to disk",
			"Time for running work to finish when the daemon stops, and again for writing objects that are only in memory to disk."},
		{"lease-ttl", duration(&c.LeaseTTL, time.Second, 24*time.Hour), "not allowed",
			"Lifetime of a lease if the request sets none. Leases also end with their connection."},
		{"max-lease-ttl", duration(&c.MaxLeaseTTL, c.LeaseTTL, 24*time.Hour).as("lease-ttl to 24h").with("lease-ttl"), "not allowed",
			"Maximum lifetime of a lease; requests for more are refused."},
		{"fill-ttl", duration(&c.FillTTL, time.Second, 24*time.Hour), "not allowed",
			"Maximum time from a reservation to its last commit."},

		{"log-level", free((*text)(&c.LogLevel), "trace, debug, info, warn, error or disabled"), "not allowed",
			"Minimum level of messages logged to standard error."},
		{"log-format", choice(&c.LogFormat, "json", "console"), "not allowed",
			"Format of log lines."},
	}...)
	return slices.Concat(list, c.clusterSettings(), c.objectSettings(), c.eventsSettings(), c.tracingSettings())
}

// These types implement flag.Value for the fields of Config, as address does.
type (
	text     string
	toggle   bool
	integer  int
	interval time.Duration
	idList   []uint32
	nameList []string
	truth    bool // as in YAML
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

func (t *truth) String() string { return strconv.FormatBool(bool(*t)) }

func (t *truth) Set(s string) error {
	if yaml.Unmarshal([]byte(s), (*bool)(t)) != nil {
		return fmt.Errorf("%q is neither true nor false", s)
	}
	return nil
}

func (i *integer) Set(s string) error {
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		return fmt.Errorf("%q is not a whole number", s)
	}
	*i = integer(n)
	return nil
}

func (d *interval) Set(s string) error {
	v, err := time.ParseDuration(strings.TrimSpace(s))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 250ms or 1m30s", s)
	}
	*d = interval(v)
	return nil
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
			return fmt.Errorf("%q is not a numeric id", name)
		}
		ids = append(ids, uint32(id))
	}
	*l = ids
	return nil
}

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

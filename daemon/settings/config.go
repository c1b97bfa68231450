package settings

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/advise"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/object"
)

// ErrConfig is wrapped by all errors of a configuration.
var ErrConfig = errors.New("bad configuration")

// Off disables a listener.
const Off = "off"

// Config holds all settings. settings() defines the name, unit, range and meaning of 0 for each;
// docs/configuration.md is generated from it. The zero Config is not valid: start from Default or
// Load.
type Config struct {
	Socket      string
	AllowUIDs   idList
	AllowGIDs   idList
	AdminSocket string
	HTTP        string
	HTTPHosts   nameList
	TokenFile   string
	Node        string

	RouterTokenFile    string
	AdminReadTokenFile string
	AdminTLSCert       string
	AdminTLSKey        string

	Arena            Bytes
	Private          Bytes
	PageBytes        Bytes
	HugePages        string
	Staging          Bytes
	StagingMax       Bytes
	Slots            Bytes
	SlotsMax         Bytes
	ConnectionMemory Bytes

	HBMPublic      Bytes
	HBMPrivate     Bytes
	HBMPageBytes   Bytes
	HBMClient      Bytes
	HBMConnections Bytes
	HBMDevices     nameList
	HBMLibrary     string
	HBMShare       string
	HBMAhead       bool
	HBMTimeout     time.Duration

	Disk          string
	DiskSize      Bytes
	DiskPrivate   Bytes
	DiskSlab      Bytes
	DiskGranule   Bytes
	DiskReserve   Bytes
	DiskCreate    bool
	DiskCodec     string
	DiskWorkers   int
	DiskQueue     Bytes
	DiskSyncEvery time.Duration

	AckLevel       string
	WriteBehind    bool
	ReadAhead      bool
	MemoryHigh     int
	MemoryLow      int
	PromoteTimeout time.Duration

	Eviction        string
	EvictionPublic  string
	EvictionPrivate string

	AdviseMemory      Bytes
	AdviseNodes       int
	AdviseCheckpoints int
	AdviseSolveEvery  int
	Decisions         int
	PrefillSpeed      int
	MemoryBandwidth   Bytes
	DiskBandwidth     Bytes

	MaxConnections  int
	MaxInFlight     int
	MaxLeases       int
	MaxReservations int
	MaxProfiles     int
	Workers         int

	RequestTimeout    time.Duration
	MaxRequestTimeout time.Duration
	HelloTimeout      time.Duration
	SendTimeout       time.Duration
	DrainTimeout      time.Duration
	LeaseTTL          time.Duration
	MaxLeaseTTL       time.Duration
	FillTTL           time.Duration

	LogLevel  string
	LogFormat string

	ClusterSeeds         nameList
	ClusterName          string
	ClusterNode          string
	ClusterBind          netip.AddrPort
	ClusterAdvertise     netip.AddrPort
	ClusterPeerBind      netip.AddrPort
	ClusterPeerAdvertise netip.AddrPort
	ClusterKeyring       string
	ClusterInsecure      bool
	ClusterTLSCert       string
	ClusterTLSKey        string
	ClusterTLSCA         string
	ClusterSecret        string
	ClusterHold          time.Duration
	ClusterCopies        bool

	ObjectBucket         string
	ObjectEndpoint       string
	ObjectPrefix         string
	ObjectRegion         string
	ObjectCredentials    string
	ObjectCA             string
	ObjectPlain          bool
	ObjectSecret         string
	ObjectSize           Bytes
	ObjectLife           time.Duration
	ObjectWrite          string
	ObjectWriteBandwidth Bytes
	ObjectQueue          Bytes
	ObjectRequests       int
	ObjectMemory         Bytes
	ObjectListEvery      time.Duration
	ObjectCodec          string
	// ObjectKeys are credentials from the environment, under AWS's names. If ObjectCredentials is set,
	// it is used instead.
	ObjectKeys object.Keys

	EventsBind       netip.AddrPort
	EventsReplayBind netip.AddrPort
	EventsPod        string
	EventsModel      string
	EventsBlock      int
	EventsFormat     string
	EventsTenants    nameList
	EventsSegments   bool
	EventsMemory     Bytes

	OTLPEndpoint string

	Tenants []Tenant
}

// Tenant is one owner of cached state. Only the YAML file can define tenants.
type Tenant struct {
	// Name is unique and has 1 to 256 bytes. A client that names no tenant gets the tenant "default".
	Name string `yaml:"name"`
	// Token is the token that a client must show, at most 1024 bytes. "" = none: every client that may
	// connect may use the tenant.
	Token string `yaml:"token"`
	// TokenFile is a file that contains the token, as an alternative to Token. White space around the
	// token is removed.
	TokenFile string `yaml:"token_file"`
	// Salt, of at most 256 bytes, is part of every key, so that this tenant's hits are separate
	// from those of other tenants. One tenant may have the empty salt. Daemons that share segments
	// must use the same salt.
	Salt string `yaml:"salt"`
	// Quota limits the bytes of this tenant's segments and checkpoints. Memory is counted in whole
	// pages, the disk in whole extents and records. 0 = only the pools limit them.
	Quota Bytes `yaml:"quota"`
	// Parallel allows sending token ids of this tenant's prompts to its other engines, on this node and
	// on other nodes, so that several engines compute segments in parallel. Both nodes have to allow
	// it.
	Parallel bool `yaml:"parallel"`
}

// DefaultTenant is the tenant of a client that names none.
const DefaultTenant = "default"

// Default returns the default configuration. A memory size that is 0 in it depends on the machine;
// Resolve sets it. The packages tiering and tiering/disk define the defaults of the store and the
// disk tier.
func Default() Config {
	store, below := tiering.Defaults(), disk.Defaults()
	c := Config{
		HTTP:              "127.0.0.1:9400",
		PageBytes:         Bytes(store.PageBytes),
		HugePages:         "auto",
		StagingMax:        1 * GiB,
		SlotsMax:          4 * GiB,
		HBMPageBytes:      Bytes(store.HBM[0].PageBytes),
		HBMClient:         64 * MiB,
		HBMConnections:    1 * GiB,
		HBMShare:          "auto",
		HBMAhead:          store.HBM[0].AfterMatch,
		HBMTimeout:        2 * time.Second,
		DiskSize:          Bytes(below.PublicBytes),
		DiskPrivate:       Bytes(below.PrivateBytes),
		DiskSlab:          Bytes(below.SlabBytes),
		DiskGranule:       Bytes(below.GranuleBytes),
		DiskReserve:       Bytes(below.ReserveBytes),
		DiskCreate:        true,
		DiskCodec:         "none",
		DiskWorkers:       below.Workers,
		DiskQueue:         Bytes(below.QueueBytes),
		DiskSyncEvery:     below.SyncEvery,
		AckLevel:          store.DefaultLevel.String(),
		WriteBehind:       store.WriteBehind,
		ReadAhead:         store.ReadAhead,
		MemoryHigh:        percent(store.HighWater),
		MemoryLow:         percent(store.LowWater),
		PromoteTimeout:    time.Second,
		Eviction:          "default",
		AdviseMemory:      Bytes(store.Advise.Bytes),
		AdviseNodes:       store.Advise.Nodes,
		AdviseCheckpoints: store.Advise.Checkpoints,
		AdviseSolveEvery:  store.Advise.SolveEvery,
		Decisions:         store.MaxDecisions,
		MaxConnections:    128,
		MaxInFlight:       64,
		MaxLeases:         store.MaxLeases,
		MaxReservations:   store.MaxReservations,
		MaxProfiles:       store.MaxProfiles,
		RequestTimeout:    5 * time.Second,
		MaxRequestTimeout: time.Minute,
		HelloTimeout:      5 * time.Second,
		SendTimeout:       time.Second,
		DrainTimeout:      5 * time.Second,
		LeaseTTL:          store.LeaseTTL,
		MaxLeaseTTL:       store.MaxLeaseTTL,
		FillTTL:           store.FillTTL,
		LogLevel:          "info",
		LogFormat:         "json",
		ClusterName:       "spliced",
		ClusterHold:       5 * time.Second,
		EventsBlock:       16,
		EventsFormat:      "maps",
		EventsTenants:     nameList{DefaultTenant},
		EventsMemory:      64 * MiB,
		ClusterCopies:     true,
		Tenants:           []Tenant{{Name: DefaultTenant}},
	}
	c.objectDefaults()
	return c
}

func percent(fraction float64) int { return int(math.Round(100 * fraction)) }

// Resolve sets the values that depend on the machine. A quarter of the machine's memory is for
// segments, an eighth for checkpoints, and at most three eighths for staging and slots, whose pages
// are taken when touched. A quarter is left for everything else. These shares are guesses.
func (c *Config) Resolve(m Machine) {
	memory := m.MemoryBytes
	if memory == 0 {
		memory = 8 * GiB
	}
	if c.Arena == 0 {
		c.Arena = min(4*GiB, roundDown(memory/4, c.PageBytes))
	}
	if c.Private == 0 {
		c.Private = min(2*GiB, roundDown(memory/8, c.PageBytes))
	}
	if c.ConnectionMemory == 0 {
		c.ConnectionMemory = memory / 8 * 3
	}
	// Staging and slots are small enough for several connections, even on a small machine.
	if c.Staging == 0 {
		c.Staging = max(64*KiB, min(64*MiB, c.StagingMax, roundDown(c.ConnectionMemory/16, c.PageBytes)))
	}
	if c.Slots == 0 {
		c.Slots = max(c.PageBytes, min(256*MiB, c.SlotsMax, roundDown(c.ConnectionMemory/8, c.PageBytes)))
	}
	if c.Workers == 0 {
		c.Workers = max(1, m.CPUs)
	}
	if c.Node == "" {
		c.Node = m.Host
	}
	if c.ClusterNode == "" {
		c.ClusterNode = strings.ToLower(m.Host)
	}
	if c.EventsPod == "" {
		c.EventsPod = c.Node
	}
}

func roundDown(n, unit Bytes) Bytes {
	if unit <= 0 {
		return n
	}
	return n / unit * unit
}

// Validate returns all errors of a resolved configuration.
func (c *Config) Validate() error {
	v := &faults{}
	c.checkSockets(v)
	c.checkAdmin(v)
	c.checkMemory(v)
	c.checkHBM(v)
	c.checkDisk(v)
	c.checkPolicies(v)
	v.between("max-connections", c.MaxConnections, 1, 4096)
	v.between("max-in-flight", c.MaxInFlight, 1, 1024)
	v.between("max-leases", c.MaxLeases, 1, 1<<20)
	v.between("max-reservations", c.MaxReservations, 1, 1<<16)
	v.between("max-profiles", c.MaxProfiles, 1, 4096)
	v.between("workers", c.Workers, 1, 1024)
	c.checkTimes(v)
	c.checkCluster(v)
	c.checkObject(v)
	c.checkEvents(v)
	c.checkTracing(v)
	if level, err := zerolog.ParseLevel(c.LogLevel); err != nil || level < zerolog.TraceLevel || c.LogLevel == "" {
		v.add("log-level", "%q is not one of trace, debug, info, warn, error, disabled", c.LogLevel)
	}
	v.oneOf("log-format", c.LogFormat, "json", "console")
	c.checkTenants(v)
	return v.err()
}

func (c *Config) checkTimes(v *faults) {
	for _, t := range []struct {
		name     string
		d        time.Duration
		low, top time.Duration
	}{
		{"request-timeout", c.RequestTimeout, time.Millisecond, c.MaxRequestTimeout},
		{"max-request-timeout", c.MaxRequestTimeout, time.Millisecond, time.Hour},
		{"hello-timeout", c.HelloTimeout, 10 * time.Millisecond, time.Minute},
		{"send-timeout", c.SendTimeout, time.Millisecond, time.Minute},
		{"drain-timeout", c.DrainTimeout, 0, 10 * time.Minute},
		{"lease-ttl", c.LeaseTTL, time.Second, 24 * time.Hour},
		{"max-lease-ttl", c.MaxLeaseTTL, c.LeaseTTL, 24 * time.Hour},
		{"fill-ttl", c.FillTTL, time.Second, 24 * time.Hour},
		{"disk-sync-every", c.DiskSyncEvery, 10 * time.Millisecond, time.Hour},
		{"hbm-timeout", c.HBMTimeout, 10 * time.Millisecond, time.Minute},
		{"promote-timeout", c.PromoteTimeout, time.Millisecond, time.Hour},
	} {
		if t.d < t.low || t.d > t.top {
			v.add(t.name, "%v is not between %v and %v", t.d, t.low, t.top)
		}
	}
}

func (c *Config) checkSockets(v *faults) {
	v.path("socket", c.Socket)
	if c.AdminSocket != Off {
		v.path("admin-socket", c.AdminSocket)
	}
	if c.AdminSocket != "" && c.AdminSocket == c.Socket {
		v.add("admin-socket", "%s is the engine socket", c.Socket)
	}
	if beside := len(filepath.Dir(c.Socket)) + len("/admin/admin.sock"); c.Socket != "" && c.AdminSocket == "" && beside > maxSocketPath-len(".lock") {
		v.add("admin-socket", "the default path beside %s has %d bytes, at most %d: set another path, or off", c.Socket, beside, maxSocketPath-len(".lock"))
	}
	if c.HTTP != Off {
		host, port, err := net.SplitHostPort(c.HTTP)
		if n, bad := strconv.Atoi(port); err != nil || bad != nil || n < 0 || n > 65535 || strings.ContainsAny(host, "/ ") {
			v.add("http", "%q is neither HOST:PORT nor off", c.HTTP)
		}
	}
	for _, h := range c.HTTPHosts {
		if h == "" || strings.ContainsAny(h, ":/ ") || strings.ToLower(h) != h {
			v.add("http-hosts", "%q is not a lower-case host name without port", h)
		}
	}
	for name, text := range map[string]string{
		"socket": c.Socket, "admin-socket": c.AdminSocket, "node": c.Node, "disk": c.Disk, "hbm-library": c.HBMLibrary,
	} {
		v.plain(name, text)
	}
	if len(c.Node) == 0 || len(c.Node) > wire.MaxName {
		v.add("node", "%d bytes, want 1 to %d", len(c.Node), wire.MaxName)
	}
}

func (c *Config) checkMemory(v *faults) {
	page := c.PageBytes
	if page < 4*KiB || page > 16*MiB || page&(page-1) != 0 {
		v.add("page-bytes", "%v is not a power of two between 4KiB and 16MiB", page)
		page = 4 * KiB
	}
	v.oneOf("huge-pages", c.HugePages, "auto", "never", "require")
	v.sizes([]sizeBound{
		{"arena", c.Arena, page, 64 * TiB},
		{"private", c.Private, page, 64 * TiB},
		{"staging-max", c.StagingMax, 64 * KiB, TiB},
		{"staging", c.Staging, 64 * KiB, c.StagingMax},
		{"slots-max", c.SlotsMax, page, TiB},
		{"slots", c.Slots, page, c.SlotsMax},
		{"connection-memory", c.ConnectionMemory, c.Staging + c.Slots, 64 * TiB},
	})
}

// UsesHBM reports whether memory of a GPU is configured. If not, no driver is loaded.
func (c *Config) UsesHBM() bool { return c.HBMPublic > 0 || c.HBMPrivate > 0 }

// checkHBM checks the ranges of the GPU settings even if no GPU is used, so that adding a GPU to a
// valid file cannot reveal such errors. It compares settings with each other only if a GPU is used.
func (c *Config) checkHBM(v *faults) {
	page := c.HBMPageBytes
	if page < 4*KiB || page > 16*MiB || page&(page-1) != 0 {
		v.add("hbm-page-bytes", "%v is not a power of two between 4KiB and 16MiB", page)
		page = 4 * KiB
	}
	for _, pool := range []sizeBound{{name: "hbm-public", size: c.HBMPublic}, {name: "hbm-private", size: c.HBMPrivate}} {
		if pool.size != 0 {
			v.sizes([]sizeBound{{pool.name, pool.size, page, 4 * TiB}})
		}
	}
	client, connections := LeastHBMClient+4*KiB, Bytes(0)
	if c.UsesHBM() {
		client, connections = LeastHBMClient+page, c.HBMClient
	}
	v.sizes([]sizeBound{
		{"hbm-client", c.HBMClient, client, TiB},
		{"hbm-connections", c.HBMConnections, connections, 4 * TiB},
	})
	c.checkDevices(v)
	if len(c.HBMLibrary) > maxDiskPath {
		v.add("hbm-library", "path of %d bytes, at most %d", len(c.HBMLibrary), maxDiskPath)
	}
	v.oneOf("hbm-share", c.HBMShare, "auto", "descriptor", "handle")
}

// checkDisk checks the ranges of the disk settings even if there is no disk. So adding a disk to a
// valid file cannot reveal other errors.
func (c *Config) checkDisk(v *faults) {
	if len(c.Disk) > maxDiskPath {
		v.add("disk", "path of %d bytes, at most %d", len(c.Disk), maxDiskPath)
	}
	granule := c.DiskGranule
	if granule < 4*KiB || granule > MiB || granule&(granule-1) != 0 {
		v.add("disk-granule", "%v is not a power of two between 4KiB and 1MiB", granule)
		granule = 4 * KiB
	}
	v.sizes([]sizeBound{
		{"disk-size", c.DiskSize, 2 * granule, 1024 * TiB},
		{"disk-private", c.DiskPrivate, 0, 1024 * TiB},
		{"disk-slab", c.DiskSlab, 2 * granule, TiB},
		{"disk-reserve", c.DiskReserve, 0, 1024 * TiB},
		{"disk-queue", c.DiskQueue, MiB, 64 * TiB},
	})
	v.oneOf("disk-codec", c.DiskCodec, "none", "kv", "all")
	v.between("disk-workers", c.DiskWorkers, 1, 256)
	v.oneOf("ack-level", c.AckLevel, "memory", "logged", "synced")
	if c.Disk == "" && c.AckLevel != "memory" {
		v.add("ack-level", "%q needs a disk", c.AckLevel)
	}
	v.between("memory-high", c.MemoryHigh, 1, 100)
	v.between("memory-low", c.MemoryLow, 1, c.MemoryHigh)
}

// checkPolicies checks the settings of policies.
func (c *Config) checkPolicies(v *faults) {
	v.eviction("eviction", c.Eviction)
	if c.EvictionPublic != "" {
		v.eviction("eviction-public", c.EvictionPublic)
	}
	if c.EvictionPrivate != "" {
		v.eviction("eviction-private", c.EvictionPrivate)
	}
	if c.AdviseMemory != 0 {
		v.sizes([]sizeBound{{"advise-memory", c.AdviseMemory, 64 * KiB, TiB}})
	}
	v.between("advise-nodes", c.AdviseNodes, 64, 1<<24)
	v.between("advise-checkpoints", c.AdviseCheckpoints, 1, advise.MaxPositions)
	v.between("advise-solve-every", c.AdviseSolveEvery, 1, 1_000_000)
	v.between("decisions", c.Decisions, 1, 1<<20)
	v.between("prefill-speed", c.PrefillSpeed, 0, 1_000_000_000)
	v.sizes([]sizeBound{
		{"memory-bandwidth", c.MemoryBandwidth, 0, 1024 * TiB},
		{"disk-bandwidth", c.DiskBandwidth, 0, 1024 * TiB},
	})
}

func (v *faults) eviction(name, policyName string) {
	if _, ok := policy.Named(policyName); !ok {
		v.add(name, "%q is not one of lru, gdsf, marconi, default", policyName)
	}
}

func (c *Config) checkTenants(v *faults) {
	if len(c.Tenants) == 0 || len(c.Tenants) > wire.MaxTenants {
		v.add("tenants", "%d tenants, want 1 to %d", len(c.Tenants), wire.MaxTenants)
	}
	names, salts := map[string]bool{}, map[string]string{}
	for i, t := range c.Tenants {
		at := fmt.Sprintf("tenants[%d]", i)
		if len(t.Name) == 0 || len(t.Name) > wire.MaxName {
			v.add(at, "name of %d bytes, want 1 to %d", len(t.Name), wire.MaxName)
		}
		v.plain(at, t.Name)
		if names[t.Name] {
			v.add(at, "name %q appears twice", t.Name)
		}
		if other, ok := salts[t.Salt]; ok {
			v.add(at, "%q has the same salt as %q, so they would share hits", t.Name, other)
		}
		names[t.Name], salts[t.Salt] = true, t.Name
		if len(t.Salt) > wire.MaxSalt {
			v.add(at, "salt of %d bytes, at most %d", len(t.Salt), wire.MaxSalt)
		}
		if len(t.Token) > wire.MaxToken {
			v.add(at, "token of %d bytes, at most %d", len(t.Token), wire.MaxToken)
		}
		if t.Quota < 0 {
			v.add(at, "quota %d is negative", int64(t.Quota))
		}
	}
}

// AllDevices selects all GPUs that the driver reports.
const AllDevices = "all"

// MaxDevices is the largest number of GPUs of one daemon. A node has 8 or 16, with up to 7 MIG
// instances each.
const MaxDevices = 128

// checkDevices checks the list of GPUs.
func (c *Config) checkDevices(v *faults) {
	if n := len(c.HBMDevices); n > MaxDevices {
		v.add("hbm-device", "%d devices, at most %d", n, MaxDevices)
	}
	seen := map[string]bool{}
	for _, name := range c.HBMDevices {
		id, err := gpuipc.ParseUUID(name)
		n, notNumber := strconv.Atoi(name)
		switch {
		case err == nil:
			name = id.String()
		case notNumber == nil && n >= 0 && n < MaxDevices:
			name = strconv.Itoa(n)
		case name == AllDevices && len(c.HBMDevices) == 1:
		case name == AllDevices:
			v.add("hbm-device", "all cannot be combined with other devices")
		default:
			v.add("hbm-device", "%q is not a device UUID (such as GPU-8a2f4c1e-...), a driver number or all", name)
		}
		if seen[name] {
			v.add("hbm-device", "%q is listed twice", name)
		}
		seen[name] = true
	}
}

// Devices returns the number of GPUs that the daemon may use. For "all" it is a guess.
func (c *Config) Devices() int {
	switch {
	case !c.UsesHBM():
		return 0
	case len(c.HBMDevices) == 1 && c.HBMDevices[0] == AllDevices:
		return 8
	}
	return max(1, len(c.HBMDevices))
}

// LeastHBMClient is the least private GPU memory of a client, for the order page and staging. One
// page of slots comes in addition.
const LeastHBMClient = 256 * KiB

// maxDiskPath is the longest path in bytes. File names appended to it stay within PATH_MAX.
const maxDiskPath = 3840

// maxSocketPath is the size of sun_path in bytes, without its terminating zero.
const maxSocketPath = 107

// faults collects errors.
type faults struct{ list []error }

func (v *faults) add(name, format string, args ...any) {
	v.list = append(v.list, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...)))
}

// sizeBound is a size and its range.
type sizeBound struct {
	name     string
	size     Bytes
	low, top Bytes
}

func (v *faults) sizes(list []sizeBound) {
	for _, s := range list {
		if s.size < s.low || s.size > s.top {
			v.add(s.name, "%v is not between %v and %v", s.size, s.low, s.top)
		}
	}
}

func (v *faults) between(name string, n, low, top int) {
	if n < low || n > top {
		v.add(name, "%d is not between %d and %d", n, low, top)
	}
}

func (v *faults) oneOf(name, got string, want ...string) {
	for _, w := range want {
		if got == w {
			return
		}
	}
	v.add(name, "%q is not one of %s", got, strings.Join(want, ", "))
}

// plain refuses text that the kernel would truncate or that cannot be displayed.
func (v *faults) plain(name, text string) {
	if !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		v.add(name, "%.64q contains control characters or is not UTF-8", text)
	}
}

// path checks the length of a socket's path. "" stands for the default path.
func (v *faults) path(name, path string) {
	if len(path) > maxSocketPath-len(".lock") {
		v.add(name, "path of %d bytes, at most %d", len(path), maxSocketPath-len(".lock"))
	}
}

func (v *faults) err() error {
	if len(v.list) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrConfig, errors.Join(v.list...))
}

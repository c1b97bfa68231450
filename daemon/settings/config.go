package settings

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/object"
)

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

	loaded Faults // where settings were set, and errors of these places
}

// Tenant is one owner of cached state. Only the YAML file can define tenants.
type Tenant struct {
	// Name is unique and has 1 to 256 bytes. A client that names no tenant gets the tenant "default".
	Name string
	// Token is the token that a client must show, at most 1024 bytes. "" = none: every client that may
	// connect may use the tenant.
	Token string
	// TokenFile is a file that contains the token, as an alternative to Token. White space around the
	// token is removed.
	TokenFile string
	// Salt, of at most 256 bytes, is part of every key, so that this tenant's hits are separate
	// from those of other tenants. One tenant may have the empty salt. Daemons that share segments
	// must use the same salt.
	Salt string
	// Quota limits the bytes of this tenant's segments and checkpoints. Memory is counted in whole
	// pages, the disk in whole extents and records. 0 = only the pools limit them.
	Quota Bytes
	// Parallel allows sending token ids of this tenant's prompts to its other engines, on this node and
	// on other nodes, so that several engines compute segments in parallel. Both nodes have to allow
	// it.
	Parallel bool
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
	memory := cmp.Or(m.MemoryBytes, 8*GiB)
	c.Arena = cmp.Or(c.Arena, min(4*GiB, roundDown(memory/4, c.PageBytes)))
	c.Private = cmp.Or(c.Private, min(2*GiB, roundDown(memory/8, c.PageBytes)))
	c.ConnectionMemory = cmp.Or(c.ConnectionMemory, memory/8*3)
	// Staging and slots are small enough for several connections, even on a small machine.
	c.Staging = cmp.Or(c.Staging, max(64*KiB, min(64*MiB, c.StagingMax, roundDown(c.ConnectionMemory/16, c.PageBytes))))
	c.Slots = cmp.Or(c.Slots, max(c.PageBytes, min(256*MiB, c.SlotsMax, roundDown(c.ConnectionMemory/8, c.PageBytes))))
	c.Workers = cmp.Or(c.Workers, max(1, m.CPUs))
	c.Node = cmp.Or(c.Node, m.Host)
	c.ClusterNode = cmp.Or(c.ClusterNode, strings.ToLower(m.Host))
	c.EventsPod = cmp.Or(c.EventsPod, c.Node)
}

func roundDown(n, unit Bytes) Bytes {
	if unit <= 0 {
		return n
	}
	return n / unit * unit
}

// Validate returns all errors of a resolved configuration, including those of its sources and those
// that more finds.
func (c *Config) Validate(more ...func(*Faults)) error {
	v := c.loaded.clone()
	for _, s := range c.settings() {
		if !c.loaded.Has(s.name) && !slices.ContainsFunc(s.others, c.loaded.Has) {
			v.checkRange(&s)
		}
	}
	c.checkSockets(v)
	c.checkAdmin(v)
	c.checkDevices(v)
	if c.Disk == "" && c.AckLevel != "memory" {
		v.Add("ack-level", "%q needs a disk", c.AckLevel)
	}
	c.checkCluster(v)
	if c.UsesObject() {
		c.checkBucket(v)
	}
	c.checkEvents(v)
	c.checkTracing(v)
	if level, err := zerolog.ParseLevel(c.LogLevel); err != nil || level < zerolog.TraceLevel || c.LogLevel == "" {
		v.Add("log-level", "%q is not one of trace, debug, info, warn, error, disabled", c.LogLevel)
	}
	c.checkTenants(v)
	for _, check := range more {
		check(v)
	}
	return v.Err()
}

func (c *Config) checkSockets(v *Faults) {
	if c.AdminSocket != "" && c.AdminSocket == c.Socket {
		v.Add("admin-socket", "%s is the engine socket", c.Socket)
	}
	if beside := len(filepath.Dir(c.Socket)) + len("/admin/admin.sock"); c.Socket != "" && c.AdminSocket == "" && beside > maxSocket {
		v.Add("admin-socket", "the default path beside %s has %d bytes, at most %d: set another path, or off", c.Socket, beside, maxSocket)
	}
	if c.HTTP != Off {
		host, port, err := net.SplitHostPort(c.HTTP)
		if n, bad := strconv.Atoi(port); err != nil || bad != nil || n < 0 || n > 65535 || strings.ContainsAny(host, "/ ") {
			v.Add("http", "%q is neither HOST:PORT nor off", c.HTTP)
		}
	}
	for _, h := range c.HTTPHosts {
		if h == "" || strings.ContainsAny(h, ":/ ") || strings.ToLower(h) != h {
			v.Add("http-hosts", "%q is not a lower-case host name without port", h)
		}
	}
	if c.Node == "" {
		v.Add("node", "it is empty, want 1 to %d bytes", wire.MaxName)
	}
}

// Listener is a port that a configuration opens.
type Listener struct {
	Setting, Network, Address string
}

// Listeners returns the ports that the configuration opens.
func (c *Config) Listeners() (list []Listener) {
	if c.HTTP != Off {
		list = append(list, Listener{"http", "tcp", c.HTTP})
	}
	if c.UsesCluster() {
		peers := c.ClusterPeerBind
		if !peers.IsValid() {
			peers = NextPort(c.ClusterBind)
		}
		gossip := c.ClusterBind.String()
		list = append(list, Listener{"cluster-bind", "tcp", gossip}, Listener{"cluster-bind", "udp", gossip}, Listener{"cluster-peer-bind", "tcp", peers.String()})
	}
	if c.UsesEvents() {
		list = append(list, Listener{"events-bind", "tcp", c.EventsBind.String()}, Listener{"events-replay-bind", "tcp", c.EventsReplay().String()})
	}
	return list
}

// UsesHBM reports whether memory of a GPU is configured. If not, no driver is loaded.
func (c *Config) UsesHBM() bool { return c.HBMPublic > 0 || c.HBMPrivate > 0 }

func (c *Config) checkTenants(v *Faults) {
	if len(c.Tenants) == 0 || len(c.Tenants) > wire.MaxTenants {
		v.Add("tenants", "%d tenants, want 1 to %d", len(c.Tenants), wire.MaxTenants)
	}
	names, salts := map[string]bool{}, map[string]string{}
	for i, t := range c.Tenants {
		at := tenantAt(i)
		if v.Has(at) || v.Has(at+".name") {
			continue // it could not be read
		}
		if len(t.Name) == 0 || len(t.Name) > wire.MaxName {
			v.Add(at+".name", "%d bytes, want 1 to %d", len(t.Name), wire.MaxName)
		}
		if err := plain(t.Name); err != nil {
			v.Add(at+".name", "%v", err)
		}
		other, ok := salts[t.Salt]
		if names[t.Name] {
			v.Add(at+".name", "%q appears twice", t.Name)
		} else if ok {
			v.Add(at+".salt", "the same as of tenant %q, so they would share hits: give each its own", other)
		}
		names[t.Name], salts[t.Salt] = true, t.Name
		if len(t.Salt) > wire.MaxSalt {
			v.Add(at+".salt", "%d bytes, at most %d", len(t.Salt), wire.MaxSalt)
		}
		if len(t.Token) > wire.MaxToken {
			v.Add(at+".token", "%d bytes, at most %d", len(t.Token), wire.MaxToken)
		}
		if t.Quota < 0 {
			v.Add(at+".quota", "%d is negative", int64(t.Quota))
		}
	}
}

// tenantAt returns the name of a tenant's settings in Faults.
func tenantAt(i int) string { return fmt.Sprintf("tenants[%d]", i) }

// AllDevices selects all GPUs that the driver reports.
const AllDevices = "all"

// MaxDevices is the largest number of GPUs of one daemon. A node has 8 or 16, with up to 7 MIG
// instances each.
const MaxDevices = 128

// checkDevices checks the list of GPUs.
func (c *Config) checkDevices(v *Faults) {
	if n := len(c.HBMDevices); n > MaxDevices {
		v.Add("hbm-device", "%d devices, at most %d", n, MaxDevices)
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
			v.Add("hbm-device", "all cannot be combined with other devices")
		default:
			v.Add("hbm-device", "%q is not a device UUID (such as GPU-8a2f4c1e-...), a driver number or all", name)
		}
		if seen[name] {
			v.Add("hbm-device", "%q is listed twice", name)
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

// maxPath is the longest path in bytes. File names appended to the path of the disk tier stay within
// PATH_MAX.
const maxPath = 3840

// maxSocket is the longest path of a socket in bytes, so that the path of its lock file fits into
// sun_path.
const maxSocket = 107 - len(".lock")

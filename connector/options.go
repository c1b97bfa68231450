package connector

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
)

// Options configure a Client. The zero value is usable.
type Options struct {
	// Socket is the daemon's path. Empty = DefaultSocket(), evaluated again at each attempt
	// to attach.
	Socket string

	// DaemonUID is the user id of the daemon. A client does not use a socket on which another
	// user answers. nil = $SPLICED_DAEMON_UID. If that is not set either, the client trusts root
	// and the owner of the socket's directory, provided that no other user could have put the
	// socket there. Otherwise it trusts no user; in a volume that the containers of a pod share,
	// the user id must therefore be set.
	DaemonUID *uint32

	// Name and version of the engine, shown to people; at most wire.MaxName bytes. Empty =
	// the program's name.
	Name string

	// Tenants of this client, at most wire.MaxTenants. Empty = the daemon's default tenant,
	// under the name "".
	Tenants []Tenant

	// StagingBytes and SlotBytes are the requested sizes of this connection's staging and
	// slot regions; 0 = the daemon's defaults. The daemon may grant less.
	StagingBytes int64
	SlotBytes    int64

	// Device, if set, is the GPU of this client. If the daemon shares memory of the same GPU,
	// the client maps that memory, and AcquireDevice grants leases in it. Otherwise
	// AcquireDevice fails and all other calls still work. A process that reads two GPUs uses two
	// clients. The caller owns Device and closes it after the client and all leases.
	Device gpuipc.Accelerator

	Timeouts Timeouts

	// Log gets one line when a daemon is found, is lost, or refuses the client. The zero Logger
	// writes nothing.
	Log zerolog.Logger
}

// Tenant is a tenant's name and the token that proves it.
type Tenant struct {
	Name  string
	Token string
}

// Timeouts bound the duration of calls, by kind of call. A context can only shorten them. A tick
// of the kernel's timer (at most 4 ms) may be added.
type Timeouts struct {
	Lookup   time.Duration // match, acquire and load (see AcquireOptions.Wait), release, stats; 0 = 50 ms
	Transfer time.Duration // each message of put, save, compose, rotate, assemble; 0 = 2 s
	Attach   time.Duration // connecting, hello, and each profile; 0 = 1 s
}

// Bounds that no option changes.
const (
	backoffFirst = 10 * time.Millisecond  // first delay between attempts to attach
	backoffMost  = 500 * time.Millisecond // largest delay, after doublings; a restarted daemon is found within 1 s

	maxModels = 64 // registered profiles of one client
)

// DefaultSocket returns $SPLICED_SOCKET. If it is not set, it returns the default path of a
// daemon: the socket in the first of /run/spliced, /run/user/UID/spliced and /tmp/spliced-UID
// that has one, or in /run/spliced if none has. /tmp/spliced-UID counts only if this user owns
// it, because other users may make directories in /tmp.
func DefaultSocket() string {
	if path := os.Getenv("SPLICED_SOCKET"); path != "" {
		return path
	}
	const name = "spliced.sock"
	uid := strconv.Itoa(os.Getuid())
	candidates := []string{filepath.Join("/run/spliced", name), filepath.Join("/run/user", uid, "spliced", name)}
	shared := "/tmp/spliced-" + uid
	var st syscall.Stat_t
	if syscall.Lstat(shared, &st) == nil && int(st.Uid) == os.Getuid() {
		candidates = append(candidates, filepath.Join(shared, name))
	}
	for _, path := range candidates {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return candidates[0]
}

// Validate lists all invalid settings of o.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, ErrInvalid)...))
	}
	if len(o.Name) > wire.MaxName {
		bad("Name has %d bytes, at most %d", len(o.Name), wire.MaxName)
	}
	if len(o.Tenants) > wire.MaxTenants {
		bad("%d Tenants, at most %d", len(o.Tenants), wire.MaxTenants)
	}
	seen := map[string]bool{}
	for i, t := range o.Tenants {
		if len(t.Name) > wire.MaxName || len(t.Token) > wire.MaxToken {
			bad("Tenants[%d]: name of %d bytes, token of %d, at most %d and %d", i, len(t.Name), len(t.Token), wire.MaxName, wire.MaxToken)
		}
		if seen[t.Name] {
			bad("Tenants[%d]: name %q twice", i, t.Name)
		}
		seen[t.Name] = true
	}
	if o.StagingBytes < 0 || o.SlotBytes < 0 {
		bad("StagingBytes %d, SlotBytes %d", o.StagingBytes, o.SlotBytes)
	}
	for name, d := range map[string]time.Duration{"Lookup": o.Timeouts.Lookup, "Transfer": o.Timeouts.Transfer, "Attach": o.Timeouts.Attach} {
		if d < 0 || d > time.Hour {
			bad("Timeouts.%s %v, want 0 to 1 h", name, d)
		}
	}
	return errors.Join(errs...)
}

// withDefaults returns o with its zero values replaced by defaults.
func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = filepath.Base(os.Args[0])
		o.Name = o.Name[:min(len(o.Name), wire.MaxName)]
	}
	if len(o.Tenants) == 0 {
		o.Tenants = []Tenant{{}}
	}
	t := &o.Timeouts
	for d, value := range map[*time.Duration]time.Duration{
		&t.Lookup: 50 * time.Millisecond, &t.Transfer: 2 * time.Second, &t.Attach: time.Second,
	} {
		if *d == 0 {
			*d = value
		}
	}
	return o
}

package object

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Tenant is a tenant of this node. Nodes share the objects of tenants with the same name
// and salt.
type Tenant struct {
	ID   tier.TenantID // not 0
	Name string
	Salt []byte
}

// Keys are fixed credentials. Token is only needed for temporary ones.
type Keys struct {
	ID, Secret, Token string
}

// MinSecret is the minimum length of the secret, in bytes.
const MinSecret = 16

// Config configures a Store. Fields marked "required" must be set. Any other field that is
// zero takes the default that its comment states.
type Config struct {
	Endpoint string // required: https://HOST[:PORT], or http:// if Plain allows it
	Bucket   string // required; it must exist
	Prefix   string // prefix of all names, of one cluster only; default "spliced/"
	Region   string // of the server; default "us-east-1"
	// Credentials is the path of a file in AWS's format (aws_access_key_id,
	// aws_secret_access_key, optionally aws_session_token; profile "default"). It is read
	// again after a change. If it is empty, Keys are used.
	Credentials string
	Keys        Keys // required without Credentials
	// CA is the path of a PEM file with the authorities for the server's certificate. It is
	// read again after a change. If it is empty, the system's authorities are used.
	CA string
	// Plain allows http:// to another host. Then anyone with access to the network in
	// between can read the traffic. Loopback is always allowed.
	Plain  bool
	Secret []byte // secret of the cluster, at least MinSecret bytes; required

	Tenants []Tenant      // required, at least one
	Device  gpuipc.Device // device of the memory that is read and written; required
	// Profile finds a registered profile; objects of other profiles are not found.
	// Required.
	Profile func(profile.Fingerprint) (*profile.Profile, bool)
	Coded   []profile.PartKind // kinds of parts that are compressed with codec.Planes; default none

	Bytes          int64         // most bytes in the prefix, of all nodes together; 0 = no limit
	Life           time.Duration // maximum age of an object; 0 = no limit
	BytesPerSecond int64         // rate of writes; 0 = no limit
	QueueBytes     int64         // most bytes admitted and not written yet, unless one object is larger; default 256 MiB
	QueueLen       int           // most objects admitted and not written yet; default 1024
	Writers        int           // concurrent uploads; default 2

	IndexBytes   int64         // memory of the index of objects, 8 bytes each; default 64 MiB
	ListEvery    time.Duration // pause between two listings; default 5 minutes
	ListRequests float64       // requests per second during a listing, ten times as many in the first; each lists a thousand objects; default 2

	Requests   int   // concurrent reads; default 32
	Streams    int   // concurrent requests of one read; default 4
	RangeBytes int64 // bytes of one request, whole blocks of 4 KiB; default 8 MiB

	AnswerTime time.Duration // timeout until an answer begins; default 5 seconds
	StallTime  time.Duration // longest time without progress of a body, in either direction; default 5 seconds
	// After BreakerFailures failures in a row (default 3) the server is not asked for
	// BreakerMin (default 1 second). This time doubles whenever the server fails again
	// after it, up to BreakerMax (default 30 seconds).
	BreakerFailures        int
	BreakerMin, BreakerMax time.Duration
	FullTime               time.Duration // pause of writes after the server was full; default 1 minute
	SuspectTime            time.Duration // how long an object with wrong bytes is not asked for; default 10 minutes
	AbsentTime             time.Duration // how long an absent object is not asked for; default 30 seconds

	Now func() time.Time // clock; default time.Now
	Log zerolog.Logger
}

// Defaults returns the default Config.
func Defaults() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, "spliced/")
	if !strings.HasSuffix(c.Prefix, "/") {
		c.Prefix += "/"
	}
	c.Region = cmp.Or(c.Region, "us-east-1")
	c.QueueBytes = cmp.Or(c.QueueBytes, 256<<20)
	c.QueueLen = cmp.Or(c.QueueLen, 1024)
	c.Writers = cmp.Or(c.Writers, 2)
	c.IndexBytes = cmp.Or(c.IndexBytes, 64<<20)
	c.ListEvery = cmp.Or(c.ListEvery, 5*time.Minute)
	c.ListRequests = cmp.Or(c.ListRequests, 2)
	c.Requests = cmp.Or(c.Requests, 32)
	c.Streams = cmp.Or(c.Streams, 4)
	c.RangeBytes = cmp.Or(c.RangeBytes, 8<<20)
	c.AnswerTime = cmp.Or(c.AnswerTime, 5*time.Second)
	c.StallTime = cmp.Or(c.StallTime, 5*time.Second)
	c.BreakerFailures = cmp.Or(c.BreakerFailures, 3)
	c.BreakerMin = cmp.Or(c.BreakerMin, time.Second)
	c.BreakerMax = cmp.Or(c.BreakerMax, max(30*time.Second, c.BreakerMin))
	c.FullTime = cmp.Or(c.FullTime, time.Minute)
	c.SuspectTime = cmp.Or(c.SuspectTime, 10*time.Minute)
	c.AbsentTime = cmp.Or(c.AbsentTime, 30*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Validate lists every problem of the configuration at once.
func (c *Config) Validate() error {
	var bad []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			bad = append(bad, fmt.Errorf("object: "+format+": %w", append(args, tier.ErrInvalid)...))
		}
	}
	_, err := c.endpoint()
	check(err == nil, "endpoint %v", err)
	check(c.Bucket != "", "no bucket")
	check(len(c.Prefix) <= 512 && !strings.HasPrefix(c.Prefix, "/"), "prefix %q begins with / or is longer than 512 bytes", c.Prefix)
	check(c.Credentials != "" || c.Keys.ID != "" && c.Keys.Secret != "", "no credentials")
	check(len(c.Secret) >= MinSecret, "secret of %d bytes, at least %d", len(c.Secret), MinSecret)
	check(c.Device != nil && c.Profile != nil, "no device or profiles")
	check(c.Bytes >= 0 && c.Life >= 0 && c.BytesPerSecond >= 0, "%d bytes, life of %v, %d bytes a second", c.Bytes, c.Life, c.BytesPerSecond)
	check(c.QueueBytes > 0 && c.QueueLen > 0 && c.Writers > 0, "queue of %d bytes and %d objects, %d writers", c.QueueBytes, c.QueueLen, c.Writers)
	check(c.IndexBytes >= 8*shards && c.ListEvery > 0 && c.ListRequests > 0, "index of %d bytes, listed every %v by %v requests a second",
		c.IndexBytes, c.ListEvery, c.ListRequests)
	check(c.Requests > 0 && c.Streams > 0, "%d reads at once, %d of one object", c.Requests, c.Streams)
	check(c.RangeBytes > 0 && c.RangeBytes%extent.BlockBytes == 0, "ranges of %d bytes", c.RangeBytes)
	check(c.AnswerTime > 0 && c.StallTime > 0 && c.FullTime > 0 && c.SuspectTime > 0 && c.AbsentTime > 0, "a time is negative")
	check(c.BreakerFailures > 0 && c.BreakerMin > 0 && c.BreakerMin <= c.BreakerMax, "%d failures, then %v to %v", c.BreakerFailures, c.BreakerMin, c.BreakerMax)
	check(len(c.Tenants) > 0, "no tenants")
	ids := map[tier.TenantID]bool{}
	for _, t := range c.Tenants {
		check(t.ID != 0 && !ids[t.ID], "tenant %q: id %d is 0 or taken", t.Name, t.ID)
		ids[t.ID] = true
	}
	return errors.Join(bad...)
}

// CheckEndpoint returns an error if a Config must not have this endpoint. The parameter plain has
// the meaning of Config.Plain.
func CheckEndpoint(endpoint string, plain bool) error {
	_, err := (&Config{Endpoint: endpoint, Plain: plain}).endpoint()
	return err
}

// endpoint parses the server's address.
func (c *Config) endpoint() (*url.URL, error) {
	u, err := url.Parse(c.Endpoint)
	switch {
	case err == nil && !ValidPort(u):
		return nil, fmt.Errorf("%q has no port between 1 and 65535", c.Endpoint)
	case err != nil || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%q is not https://HOST or https://HOST:PORT", c.Endpoint)
	case u.Scheme == "https" || u.Scheme == "http" && (c.Plain || loopback(u.Hostname())):
		return u, nil
	case u.Scheme == "http":
		return nil, fmt.Errorf("%q is plain HTTP to another host: use https://, or allow it with object-plain", c.Endpoint)
	}
	return nil, fmt.Errorf("%q is not https://HOST or https://HOST:PORT", c.Endpoint)
}

// ValidPort reports whether a URL has a valid port, or none.
func ValidPort(u *url.URL) bool {
	if !strings.HasSuffix(u.Host, ":"+u.Port()) {
		return true
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && n > 0
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// CheckBucket returns an error if a bucket must not have this name.
func CheckBucket(name string) error {
	if err := s3utils.CheckValidBucketNameStrict(name); err != nil {
		return fmt.Errorf("%.64q is not 3 to 63 lower-case letters, digits, dots and hyphens as S3 wants them: %w", name, err)
	}
	return nil
}

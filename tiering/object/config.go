package object

import (
	"errors"
	"fmt"
	"net"
	"net/url"
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

// Keys are fixed credentials. Token is empty for those of a user.
type Keys struct {
	ID, Secret, Token string
}

// MinSecret is the minimum length of the secret, in bytes.
const MinSecret = 16

// Config configures a Store. Zero values take the stated default.
type Config struct {
	Endpoint string // required: https://HOST[:PORT], or http:// if Plain allows it
	Bucket   string // required; it must exist
	Prefix   string // of all names, "spliced/"; it belongs to one cluster
	Region   string // "us-east-1"
	// Credentials is the path of a file in AWS's format (aws_access_key_id,
	// aws_secret_access_key, optionally aws_session_token; profile "default"). It is read
	// again after a change. Empty = Keys.
	Credentials string
	Keys        Keys // required without Credentials
	// CA is the path of a PEM file with the authorities of the server's certificate. It
	// is read again after a change. Empty = those of the system.
	CA string
	// Plain allows http:// to another host: anyone with access to the network between can
	// read the traffic. Loopback needs no permission.
	Plain  bool
	Secret []byte // of the cluster, at least MinSecret bytes; required

	Tenants []Tenant      // required, at least one
	Device  gpuipc.Device // of the memory that is read and written; required
	// Profile finds a registered profile; objects of other profiles are not found.
	// Required.
	Profile func(profile.Fingerprint) (*profile.Profile, bool)
	Coded   []profile.PartKind // parts that are stored by codec.Planes; none

	Bytes          int64         // bound of the prefix, for all nodes together; 0 = no bound
	Life           time.Duration // maximum age of an object; 0 = no bound
	BytesPerSecond int64         // of writes; 0 = no bound
	QueueBytes     int64         // of objects admitted and not written yet; 256 MiB. One object may be larger
	QueueLen       int           // number of these objects; 1024
	Writers        int           // concurrent uploads; 2

	IndexBytes   int64         // memory of the index of objects, 8 bytes each; 64 MiB
	ListEvery    time.Duration // from one listing's end to the next; 5 minutes
	ListRequests float64       // per second during a listing, a thousand objects each; 2. The first listing has ten times that

	Requests   int   // concurrent reads; 32
	Streams    int   // of one object, concurrent; 4
	RangeBytes int64 // of one read, whole blocks of 4 KiB; 8 MiB

	AnswerTime time.Duration // until an answer begins; 5 seconds
	StallTime  time.Duration // without a byte of a body, in either direction; 5 seconds
	// After BreakerFailures in a row the server is not asked for BreakerMin, doubled each
	// time, up to BreakerMax; 3, 1 and 30 seconds.
	BreakerFailures        int
	BreakerMin, BreakerMax time.Duration
	FullTime               time.Duration // pause of writes after the server was full; 1 minute
	SuspectTime            time.Duration // how long an object that was wrong is not asked for; 10 minutes
	AbsentTime             time.Duration // how long one that was absent is not asked for; 30 seconds

	Now func() time.Time // time.Now
	Log zerolog.Logger
}

// Defaults returns the default Config.
func Defaults() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	setDefault(&c.Prefix, "spliced/")
	if !strings.HasSuffix(c.Prefix, "/") {
		c.Prefix += "/"
	}
	setDefault(&c.Region, "us-east-1")
	setDefault(&c.QueueBytes, 256<<20)
	setDefault(&c.QueueLen, 1024)
	setDefault(&c.Writers, 2)
	setDefault(&c.IndexBytes, 64<<20)
	setDefault(&c.ListEvery, 5*time.Minute)
	setDefault(&c.ListRequests, 2)
	setDefault(&c.Requests, 32)
	setDefault(&c.Streams, 4)
	setDefault(&c.RangeBytes, 8<<20)
	setDefault(&c.AnswerTime, 5*time.Second)
	setDefault(&c.StallTime, 5*time.Second)
	setDefault(&c.BreakerFailures, 3)
	setDefault(&c.BreakerMin, time.Second)
	setDefault(&c.BreakerMax, max(30*time.Second, c.BreakerMin))
	setDefault(&c.FullTime, time.Minute)
	setDefault(&c.SuspectTime, 10*time.Minute)
	setDefault(&c.AbsentTime, 30*time.Second)
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
	if _, err := c.endpoint(); err != nil {
		bad = append(bad, err)
	}
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

// CheckEndpoint checks whether a Config may have an endpoint. tier.ErrInvalid otherwise.
func CheckEndpoint(endpoint string, plain bool) error {
	_, err := (&Config{Endpoint: endpoint, Plain: plain}).endpoint()
	return err
}

// endpoint parses the server's address.
func (c *Config) endpoint() (*url.URL, error) {
	u, err := url.Parse(c.Endpoint)
	switch {
	case err != nil || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("object: endpoint %q is not https://HOST[:PORT]: %w", c.Endpoint, tier.ErrInvalid)
	case u.Scheme == "https" || u.Scheme == "http" && (c.Plain || loopback(u.Hostname())):
		return u, nil
	case u.Scheme == "http":
		return nil, fmt.Errorf("object: endpoint %q is plain HTTP to another host, which has to be allowed: %w", c.Endpoint, tier.ErrInvalid)
	}
	return nil, fmt.Errorf("object: endpoint %q is not https://HOST[:PORT]: %w", c.Endpoint, tier.ErrInvalid)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// CheckBucket returns what is wrong with the name of a bucket.
func CheckBucket(name string) error {
	if err := s3utils.CheckValidBucketNameStrict(name); err != nil {
		return fmt.Errorf("%.64q is not 3 to 63 lower-case letters, digits, dots and hyphens as S3 wants them: %w", name, err)
	}
	return nil
}

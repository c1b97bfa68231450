package settings

import (
	"cmp"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/tiering/object"
)

// objectSettings returns the settings of the object store. Without a bucket there is no object
// store.
func (c *Config) objectSettings() []setting {
	return []setting{
		{"object-bucket", free((*text)(&c.ObjectBucket), "name of a bucket, 3 to 63 lower-case letters, digits, dots and hyphens"), "no object store",
			"Bucket of an S3 server shared by all nodes, for cold segments and checkpoints and for nodes that start empty. It must exist. If the server cannot be used, the daemon starts without it and readiness reports degraded."},
		{"object-endpoint", limited(&c.ObjectEndpoint, 2048).as("https://HOST or https://HOST:PORT; http:// for loopback, else with object-plain"), "refused with object-bucket",
			"Address of the S3 server."},
		{"object-prefix", limited(&c.ObjectPrefix, 512), "not allowed",
			"Prefix of the names of all objects in the bucket. Only one cluster may use a prefix, because its nodes delete old objects under it."},
		{"object-region", limited(&c.ObjectRegion, 64), "$AWS_REGION, else us-east-1",
			"Region for signing requests."},
		{"object-credentials", path(&c.ObjectCredentials, "path of a file in AWS's format, of which the profile default is used"), "$AWS_ACCESS_KEY_ID, $AWS_SECRET_ACCESS_KEY and $AWS_SESSION_TOKEN, else the file that $AWS_SHARED_CREDENTIALS_FILE names",
			"Credentials for the S3 server. The file is reread when it changes."},
		{"object-ca", path(&c.ObjectCA, "path of a PEM file"), "the system's authorities",
			"Certificate authorities for the server's certificate. The file is reread when it changes."},
		{"object-plain", onOff(&c.ObjectPlain), "not allowed",
			"Whether http:// is allowed to other hosts. Anyone who can read the network can then read token ids and states."},
		{"object-secret", path(&c.ObjectSecret, "path of a file with at least 16 bytes, the same on all nodes"), "cluster-secret; refused without that or cluster-seeds",
			"File with the key for objects in the bucket. It hides their names (keyed hashes) and authenticates their contents, so that nobody without the key can forge an object. Contents are not encrypted: whoever can read the bucket can read token ids and states. In a cluster with neither this nor cluster-secret, the key is derived from the keyring's first key at the start, and objects written before that key changed are no longer found."},
		{"object-size", size(&c.ObjectSize, 0, 1024*TiB), "no limit",
			"Maximum size of all objects under the prefix, written by all nodes together; set the same value on each node. Beyond it the oldest objects are deleted."},
		{"object-life", duration(&c.ObjectLife, 0, 8760*time.Hour), "never",
			"Age at which an object is deleted from the bucket. Set the same value on all nodes."},
		{"object-write", choice(&c.ObjectWrite, "evicted", "all", "none"), "not allowed",
			"Which objects are written. evicted: objects that leave memory or were reused, and when the daemon stops those still in memory, if no other node is believed to have them and fetching takes less time than computing; all: every published object; none: the bucket is only read."},
		{"object-write-bandwidth", size(&c.ObjectWriteBandwidth, 0, TiB).as("bytes per second, 0B to 1TiB"), "no limit",
			"Maximum speed at which this node writes to the bucket."},
		{"object-queue", size(&c.ObjectQueue, MiB, TiB), "not allowed",
			"Maximum size of objects queued for writing or being written, which stay in memory meanwhile and take at most an eighth of a pool. Beyond it evicted objects are not written."},
		{"object-requests", count(&c.ObjectRequests, 1, 1024), "not allowed",
			"Maximum number of concurrent reads from the bucket."},
		{"object-memory", size(&c.ObjectMemory, 64*KiB, 64*GiB), "not allowed",
			"Memory for the index of objects in the bucket, 8 bytes each. For objects that do not fit, each lookup asks the server."},
		{"object-list-every", duration(&c.ObjectListEvery, 10*time.Second, 24*time.Hour), "not allowed",
			"Time between listings of the bucket, which find objects that other nodes have written. A listing costs one request per thousand objects."},
		{"object-codec", choice(&c.ObjectCodec, "none", "kv", "all"), "not allowed",
			"Which parts are stored with lossless compression, as in disk-codec."},
	}
}

// UsesObject reports whether there is an object store.
func (c *Config) UsesObject() bool { return c.ObjectBucket != "" }

// objectDefaults sets the defaults that are not zero.
func (c *Config) objectDefaults() {
	d := object.Defaults()
	c.ObjectPrefix, c.ObjectWrite, c.ObjectCodec = d.Prefix, "evicted", "none"
	c.ObjectQueue, c.ObjectRequests, c.ObjectMemory, c.ObjectListEvery = Bytes(d.QueueBytes), d.Requests, Bytes(d.IndexBytes), d.ListEvery
}

// objectEnvironment reads settings that are not set from AWS's environment variables.
func (c *Config) objectEnvironment(getenv func(string) string) {
	if !c.UsesObject() {
		return
	}
	c.ObjectRegion = cmp.Or(c.ObjectRegion, getenv("AWS_REGION"))
	if c.ObjectCredentials != "" {
		return
	}
	c.ObjectKeys = object.Keys{ID: getenv("AWS_ACCESS_KEY_ID"), Secret: getenv("AWS_SECRET_ACCESS_KEY"), Token: getenv("AWS_SESSION_TOKEN")}
	if c.ObjectKeys.ID == "" {
		c.ObjectCredentials = getenv("AWS_SHARED_CREDENTIALS_FILE")
	}
}

// checkBucket checks the settings that an object store requires.
func (c *Config) checkBucket(v *Faults) {
	if err := object.CheckBucket(c.ObjectBucket); err != nil {
		v.Add("object-bucket", "%v", err)
	}
	if c.ObjectEndpoint == "" {
		v.Add("object-endpoint", "required with object-bucket: the address of the server, such as https://s3.example.com")
	} else if err := object.CheckEndpoint(c.ObjectEndpoint, c.ObjectPlain); err != nil {
		v.Add("object-endpoint", "%v", err)
	}
	if c.ObjectCredentials == "" && (c.ObjectKeys.ID == "" || c.ObjectKeys.Secret == "") {
		v.Add("object-credentials", "no credentials: set a file, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment")
	}
	if c.ObjectSecret == "" && c.ClusterSecret == "" && (!c.UsesCluster() || c.ClusterKeyring == "") {
		v.Add("object-secret", "required without a cluster keyring, so that others cannot forge objects in the bucket")
	}
	if c.ObjectPrefix == "" || strings.HasPrefix(c.ObjectPrefix, "/") {
		v.Add("object-prefix", "%q is empty or begins with /", c.ObjectPrefix)
	}
}

package daemon

import (
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/object"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// openObject creates the configured object store. It sends no request yet.
func (d *Daemon) openObject() (err error) {
	c := &d.config
	if !c.UsesObject() {
		return nil
	}
	config := object.Config{
		Endpoint: c.ObjectEndpoint, Bucket: c.ObjectBucket, Prefix: c.ObjectPrefix, Region: c.ObjectRegion,
		Credentials: c.ObjectCredentials, Keys: c.ObjectKeys, CA: c.ObjectCA, Plain: c.ObjectPlain, Secret: d.objectKey,
		Device: d.device, Coded: codedParts[c.ObjectCodec], Bytes: int64(c.ObjectSize), Life: c.ObjectLife,
		BytesPerSecond: int64(c.ObjectWriteBandwidth), QueueBytes: int64(c.ObjectQueue), Requests: c.ObjectRequests,
		IndexBytes: int64(c.ObjectMemory), ListEvery: c.ObjectListEvery, Now: d.now, Log: d.log,
		Profile: func(f profile.Fingerprint) (*profile.Profile, bool) {
			_, found, ok := d.store.FindProfile(f)
			return found, ok
		},
	}
	for _, t := range d.tenants {
		config.Tenants = append(config.Tenants, object.Tenant{ID: t.ID, Name: t.Name, Salt: t.Salt})
	}
	d.object, err = object.New(config)
	return err
}

// maxSecretBytes is the largest size of a file with a secret, in bytes.
const maxSecretBytes = 64 << 10

// objectSecret returns the secret that hides names and authenticates contents in the bucket: the
// object secret, the cluster secret's file or the cluster's own secret, whichever is set first.
func (d *Daemon) objectSecret(v *settings.Faults) []byte {
	name, path := "object-secret", d.config.ObjectSecret
	if path == "" {
		name, path = "cluster-secret", d.config.ClusterSecret
	}
	if path == "" {
		if d.peers == nil { // the cluster has no secret, which is an error of its own
			return nil
		}
		secret := d.peers.cluster.Secret()
		return secret[:]
	}
	secret, warning, err := settings.ReadRegular(path, maxSecretBytes)
	switch {
	case v.Has(name): // the cluster reads this file too
	case err != nil:
		v.Add(name, "%v", err)
	case len(secret) < object.MinSecret:
		v.Add(name, "%s: %d bytes, at least %d", path, len(secret), object.MinSecret)
	case warning != "" && (name == "object-secret" || d.peers == nil):
		d.log.Warn().Msg(name + ": " + warning)
	}
	return secret
}

// remote returns the remote tiers of this node: peers before the object store; nil = none.
func (d *Daemon) remote() tier.Remote {
	switch {
	case d.peers != nil && d.object != nil:
		return tier.Remotes{d.peers.fetch, d.object}
	case d.peers != nil:
		return d.peers.fetch
	case d.object != nil:
		return d.object
	}
	return nil
}

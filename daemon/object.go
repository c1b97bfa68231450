package daemon

import (
	"fmt"

	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/object"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// openObject creates the configured object store. It sends no request yet.
func (d *Daemon) openObject() error {
	c := &d.config
	if !c.UsesObject() {
		return nil
	}
	secret, err := d.objectSecret()
	if err != nil {
		return err
	}
	config := object.Config{
		Endpoint: c.ObjectEndpoint, Bucket: c.ObjectBucket, Prefix: c.ObjectPrefix, Region: c.ObjectRegion,
		Credentials: c.ObjectCredentials, Keys: c.ObjectKeys, CA: c.ObjectCA, Plain: c.ObjectPlain, Secret: secret,
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
func (d *Daemon) objectSecret() ([]byte, error) {
	name, path := "object-secret", d.config.ObjectSecret
	if path == "" {
		name, path = "cluster-secret", d.config.ClusterSecret
	}
	if path == "" {
		secret := d.peers.cluster.Secret()
		return secret[:], nil
	}
	secret, warning, err := settings.ReadRegular(path, maxSecretBytes)
	if err == nil && len(secret) < object.MinSecret {
		err = fmt.Errorf("%s: %d bytes, at least %d", path, len(secret), object.MinSecret)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", name, err, settings.ErrConfig)
	}
	if warning != "" {
		d.log.Warn().Msg(name + ": " + warning)
	}
	return secret, nil
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

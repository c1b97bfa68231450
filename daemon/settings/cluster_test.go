package settings

import (
	"strings"
	"testing"
)

func TestWhatAClusterNeeds(t *testing.T) {
	good := []string{"-cluster-seeds=peers.example", "-cluster-bind=10.0.0.7:7946", "-cluster-keyring=/etc/spliced/keys"}
	for name, row := range map[string]struct {
		args []string
		want string // in the error; empty = it is good
	}{
		"enough":                      {good, ""},
		"all addresses, one of which": {[]string{"-cluster-bind=0.0.0.0:7946", "-cluster-advertise=10.0.0.7:7946"}, ""},
		"seeds of all kinds":          {[]string{"-cluster-seeds=a.example:7946,10.0.0.8,10.0.0.9:1,fd00::1,[fd00::2]:7946,host"}, ""},
		"no keyring, by name":         {[]string{"-cluster-keyring=", "-cluster-insecure=on"}, ""},
		"nothing to listen at":        {[]string{"-cluster-bind="}, "cluster-bind: required"},
		"all addresses":               {[]string{"-cluster-bind=0.0.0.0:7946"}, "cluster-advertise: required because cluster-bind is a wildcard"},
		"no keyring":                  {[]string{"-cluster-keyring="}, "cluster-keyring: required"},
		"a keyring and insecure":      {[]string{"-cluster-insecure=on"}, "cluster-insecure: cannot be combined with cluster-keyring"},
		"a bad seed":                  {[]string{"-cluster-seeds=http://peers"}, "cluster-seeds: \"http://peers\""},
		"a seed with a bad port":      {[]string{"-cluster-seeds=peers:0"}, "cluster-seeds: \"peers:0\" has no port"},
		"too many seeds":              {[]string{"-cluster-seeds=" + strings.Repeat("a,", 65)}, "cluster-seeds: 65 seeds"},
		"a node in capitals":          {[]string{"-cluster-node=GPU-7"}, "cluster-node: \"GPU-7\""},
		"a name with spaces":          {[]string{"-cluster-name=a b"}, "cluster-name: \"a b\""},
		"two of three files":          {[]string{"-cluster-tls-cert=a", "-cluster-tls-key=b"}, "set all of cluster-tls-cert"},
		"nothing can be reached":      {[]string{"-cluster-peer-advertise=0.0.0.0:1"}, "cluster-peer-advertise: 0.0.0.0:1"},
		"one port for both":           {[]string{"-cluster-peer-bind=10.0.0.7:7946"}, "cluster-peer-bind: 10.0.0.7:7946 is already used by cluster-bind"},
		"a hold of a second":          {[]string{"-cluster-hold=1s"}, "cluster-hold: 1s"},
	} {
		if _, err := valid(from("", nil, append(good[:3:3], row.args...)...)); (row.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
	// An address that could not be read is not also missed.
	_, err := valid(from("", nil, append(good[:3:3], "-cluster-bind=localhost:7946")...))
	if err == nil || err.Error() != `bad configuration: -cluster-bind: "localhost:7946" is not ADDRESS:PORT` {
		t.Error(err)
	}
	_, err = valid(from("", nil, append(good[:3:3], "-cluster-bind=0.0.0.0:7946", "-cluster-advertise=localhost:7946")...))
	if err == nil || err.Error() != `bad configuration: -cluster-advertise: "localhost:7946" is not ADDRESS:PORT` {
		t.Error(err)
	}
}

func TestACapitalInAHostsNameIsNoTrouble(t *testing.T) {
	c := Default()
	c.Resolve(Machine{Host: "GPU-7.Rack"})
	if c.Node != "GPU-7.Rack" || c.ClusterNode != "gpu-7.rack" {
		t.Errorf("node %s, in the cluster %s", c.Node, c.ClusterNode)
	}
}

func TestNamesOfNodes(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "gpu-7.rack-2.example.org": true, "0": true, strings.Repeat("a", 63): true, strings.TrimSuffix(strings.Repeat("abc.", 63), "."): true,
		"": false, "A": false, "a b": false, "-a": false, "a-": false, "a..b": false, "a.": false, "*.a": false, "a_b": false, "ä": false,
		strings.Repeat("a", 64): false, strings.Repeat("abcd.", 51): false,
	} {
		if ValidNode(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

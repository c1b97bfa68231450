package daemon

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/daemon/settings"
)

// New reads every file that settings name, and reports all that is wrong with them and with other
// settings at once.
func TestAllBadFilesAreReportedAtOnce(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"short": "short", "token": "a token that is long enough", "pem": "rubbish"} {
		must(t, os.WriteFile(at(name), []byte(text), 0o600))
	}
	c := testConfig(t)
	c.Workers = 5000
	c.TokenFile, c.RouterTokenFile, c.AdminReadTokenFile = at("none"), at("short"), at("token")
	c.AdminTLSCert, c.AdminTLSKey = at("pem"), at("token")
	c.ClusterSeeds, c.ClusterBind, c.ClusterNode = []string{"a"}, netip.MustParseAddrPort("127.0.0.1:0"), "a"
	c.ClusterKeyring, c.ClusterSecret = at("token"), at("short")
	c.ObjectBucket, c.ObjectEndpoint, c.ObjectCredentials = "cold", "https://s3.example.com", at("none")
	c.ObjectSecret, c.ObjectCA = at("short"), at("pem")
	_, err := New(c, Parts{})
	want := []string{
		"workers: 5000 is not between 1 and 1024", "token-file: open " + at("none") + ": no such file or directory", "router-token-file: " + at("short") + " has 5 bytes, want 16 to 4096",
		"admin-tls-cert-file: " + at("pem") + " has no certificate in PEM",
		"cluster-keyring: " + at("token") + ": line 1 is not base64", "cluster-secret: " + at("short") + ": 5 bytes, want at least 16",
		"object-secret: " + at("short") + ": 5 bytes, at least 16", "object-ca: " + at("pem") + " holds no certificate",
	}
	if !errors.Is(err, settings.ErrConfig) || strings.TrimPrefix(err.Error(), "bad configuration: ") != strings.Join(want, "\n") {
		t.Errorf("%v\nwant\n%s", err, strings.Join(want, "\n"))
	}
	c = testConfig(t)
	c.ClusterSeeds, c.ClusterBind, c.ClusterNode = []string{"a"}, netip.MustParseAddrPort("127.0.0.1:0"), "a"
	c.ClusterTLSCert, c.ClusterTLSKey, c.ClusterTLSCA = at("pem"), at("none"), at("pem")
	c.ClusterKeyring = at("short")
	if _, err = New(c, Parts{}); err == nil || err.Error() != "bad configuration: cluster-tls-key: open "+at("none")+": no such file or directory\ncluster-keyring: "+at("short")+": line 1 is not base64" {
		t.Error(err)
	}
}

// Check tries every port, finds two settings with the same one, and leaves all of them free.
func TestCheckTriesPorts(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer tcp.Close()
	gossip, free := address(t), address(t)
	udp, err := net.ListenPacket("udp", gossip.String()) // and nobody listens there by TCP
	must(t, err)
	defer udp.Close()
	taken := tcp.Addr().(*net.TCPAddr).AddrPort()
	c := testConfig(t)
	c.ClusterSeeds, c.ClusterBind, c.ClusterPeerBind, c.ClusterNode, c.ClusterInsecure = []string{"a"}, gossip, taken, "a", true
	c.HTTP, c.EventsBind, c.EventsReplayBind = free.String(), free, netip.MustParseAddrPort("192.0.2.1:5558")
	d, err := New(c, Parts{Machine: &settings.Machine{MemoryBytes: 8 * settings.MiB, CPUs: 1, Host: "n"}})
	must(t, err)
	want := []string{
		"memory: arena 8MiB and private 4MiB exceed the 8MiB available to this process: reduced to 4MiB and 2MiB",
		"a start would fail now: cluster-bind: listen udp " + gossip.String() + ": bind: address already in use: stop the process that uses the port, or set another port",
		"a start would fail now: cluster-peer-bind: listen tcp " + taken.String() + ": bind: address already in use: stop the process that uses the port, or set another port",
		"a start would fail now: events-bind: listen tcp " + free.String() + ": bind: address already in use: stop the process that uses the port, or set another port",
		"a start would fail now: events-replay-bind: listen tcp 192.0.2.1:5558: bind: cannot assign requested address: set an address that this machine has",
	}
	for range 2 {
		if got := d.Check(); !slices.Equal(got, want) {
			t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

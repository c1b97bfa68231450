package manifesttest

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/pod-security-admission/api"
	"sigs.k8s.io/yaml"
)

// read decodes every document of a manifest, by its kind and strictly.
func read(t *testing.T, name string) (objects []any) {
	t.Helper()
	for i, text := range documents(t, name) {
		var kind metav1.TypeMeta
		must(t, yaml.Unmarshal(text, &kind))
		kinds := map[string]any{
			"v1 Service": &corev1.Service{}, "v1 Pod": &corev1.Pod{}, "apps/v1 StatefulSet": &appsv1.StatefulSet{}, "apps/v1 DaemonSet": &appsv1.DaemonSet{},
			"networking.k8s.io/v1 NetworkPolicy": &networkingv1.NetworkPolicy{}, "monitoring.coreos.com/v1 PodMonitor": &monitoringv1.PodMonitor{},
		}
		object := kinds[kind.APIVersion+" "+kind.Kind]
		if object == nil {
			t.Fatalf("%s: document %d is a %s %s", name, i, kind.APIVersion, kind.Kind)
		}
		if err := yaml.UnmarshalStrict(text, object); err != nil {
			t.Fatalf("%s: document %d: %v", name, i, err)
		}
		objects = append(objects, object)
	}
	return objects
}

// the finds the one object of a type.
func the[T any](t *testing.T, objects []any) T {
	t.Helper()
	for _, o := range objects {
		if v, ok := o.(T); ok {
			return v
		}
	}
	var none T
	t.Fatalf("no %T", none)
	return none
}

// podOf makes a pod of a template.
func podOf(template *corev1.PodTemplateSpec) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
}

func clusterPod(t *testing.T) *corev1.Pod {
	t.Helper()
	return podOf(&the[*appsv1.StatefulSet](t, read(t, "cluster.yaml")).Spec.Template)
}

// What holds of a sidecar of one engine holds of those of a cluster.
func TestSidecarsOfAClusterAreSidecars(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *corev1.Pod){
		"restricted": sidecarIsRestricted, "native": sidecarIsNativeAndUnprivileged, "socket": socketDirectoryIsShared,
		"trust": engineBelievesTheDaemonAlone, "probes": probesAskPathsThatAreServed, "memory": memoryLimitHoldsAll,
	} {
		t.Run(name, func(t *testing.T) { test(t, clusterPod(t)) })
	}
}

// A DaemonSet needs what it says it needs, and nothing else.
func TestWhatADaemonSetNeedsIsSaid(t *testing.T) {
	for _, name := range []string{"cluster-daemonset.yaml", "daemonset-gpu.yaml"} {
		t.Run(name, func(t *testing.T) { daemonSetNeedsWhatItSays(t, name) })
	}
}

func daemonSetNeedsWhatItSays(t *testing.T, name string) {
	objects := read(t, name)
	set := the[*appsv1.DaemonSet](t, objects)
	reasons := func(of api.Level, pod *corev1.Pod) []string {
		var list []string
		for _, v := range violationsOf(t, of, pod) {
			reason, _, _ := strings.Cut(v, ":")
			list = append(list, reason)
		}
		slices.Sort(list)
		return list
	}
	pod := podOf(&set.Spec.Template)
	engine, whole := the[*corev1.Pod](t, objects), pod.DeepCopy()
	pod.Spec.InitContainers = nil
	for _, row := range []struct {
		name string
		pod  *corev1.Pod
		of   api.Level
		want []string
	}{
		{"all of it", whole, api.LevelBaseline, []string{"hostPath volumes"}},
		{"the daemon", pod, api.LevelBaseline, []string{"hostPath volumes"}},
		{"an engine", engine, api.LevelBaseline, []string{"hostPath volumes"}},
		{"all of it", whole, api.LevelRestricted, []string{"restricted volume types", "runAsNonRoot != true", "runAsUser=0", "unrestricted capabilities"}},
		{"the daemon", pod, api.LevelRestricted, []string{"restricted volume types"}},
		{"an engine", engine, api.LevelRestricted, []string{"restricted volume types"}},
	} {
		if got := reasons(row.of, row.pod); !slices.Equal(got, row.want) {
			t.Errorf("%s, %s: %q, want %q", row.name, row.of, got, row.want)
		}
	}
	daemon := set.Spec.Template.Spec.Containers[0]
	made := set.Spec.Template.Spec.InitContainers[0].Command
	socket := argument(t, daemon.Args, "socket")
	if dir := path.Dir(socket); made[len(made)-1] != dir || made[3] != fmt.Sprint(*pod.Spec.SecurityContext.RunAsUser) || made[5] != fmt.Sprint(*pod.Spec.SecurityContext.RunAsGroup) {
		t.Errorf("%q does not make %s for the daemon", made, dir)
	}
	if !slices.Contains(engine.Spec.SecurityContext.SupplementalGroups, *pod.Spec.SecurityContext.RunAsGroup) {
		t.Error("the engine is not in the socket's group")
	}
	for _, e := range []corev1.EnvVar{{Name: "SPLICED_SOCKET", Value: socket}, {Name: "SPLICED_DAEMON_UID", Value: made[3]}} {
		if !slices.Contains(engine.Spec.Containers[0].Env, e) {
			t.Errorf("the engine is not told %s=%s", e.Name, e.Value)
		}
	}
	if *engine.Spec.SecurityContext.RunAsUser == *pod.Spec.SecurityContext.RunAsUser {
		t.Error("the engine runs as the daemon's user")
	}
	memoryLimitHoldsAll(t, &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{daemon}}})
	probesAskPathsThatAreServed(t, &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{daemon}}})
}

// member is a daemon of a cluster as a manifest has it.
type member struct {
	service *corev1.Service
	pod     *corev1.Pod
	daemon  corev1.Container
}

func eachMember(t *testing.T, test func(*testing.T, member)) {
	for _, name := range []string{"cluster.yaml", "cluster-daemonset.yaml"} {
		t.Run(name, func(t *testing.T) {
			objects := read(t, name)
			m := member{service: the[*corev1.Service](t, objects)}
			if name == "cluster.yaml" {
				m.pod = clusterPod(t)
				m.daemon = m.pod.Spec.InitContainers[0]
			} else {
				m.pod = podOf(&the[*appsv1.DaemonSet](t, objects).Spec.Template)
				m.daemon = m.pod.Spec.Containers[0]
			}
			test(t, m)
		})
	}
}

// port is a setting's.
func port(t *testing.T, args []string, name string) int32 {
	t.Helper()
	value := argument(t, args, name)
	n, err := strconv.ParseInt(value[strings.LastIndexByte(value, ':')+1:], 10, 32)
	must(t, err)
	return int32(n)
}

// ports are all that a member serves, by name.
func (m *member) ports(t *testing.T) map[string]corev1.ServicePort {
	gossip := port(t, m.daemon.Args, "cluster-bind")
	list := map[string]corev1.ServicePort{
		"gossip-tcp": {Port: gossip, Protocol: corev1.ProtocolTCP}, "gossip-udp": {Port: gossip, Protocol: corev1.ProtocolUDP},
		"peers": {Port: gossip + 1, Protocol: corev1.ProtocolTCP}, "http-admin": {Port: port(t, m.daemon.Args, "http"), Protocol: corev1.ProtocolTCP},
	}
	if slices.ContainsFunc(m.daemon.Args, func(a string) bool { return strings.HasPrefix(a, "-events-bind=") }) {
		events := port(t, m.daemon.Args, "events-bind")
		list["events"] = corev1.ServicePort{Port: events, Protocol: corev1.ProtocolTCP}
		list["events-replay"] = corev1.ServicePort{Port: events + 1, Protocol: corev1.ProtocolTCP}
	}
	return list
}

func protocol(p corev1.Protocol) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return p
}

func TestMembersFindEachOther(t *testing.T) {
	eachMember(t, func(t *testing.T, m member) {
		s := m.service.Spec
		if s.ClusterIP != corev1.ClusterIPNone || !s.PublishNotReadyAddresses {
			t.Error("members are not found, or only once they are ready")
		}
		if !labels.SelectorFromSet(s.Selector).Matches(labels.Set(m.pod.Labels)) {
			t.Errorf("the service selects %v, the pod is %v", s.Selector, m.pod.Labels)
		}
		if seed := argument(t, m.daemon.Args, "cluster-seeds"); seed != m.service.Name {
			t.Errorf("the seed is %s, the service %s", seed, m.service.Name)
		}
		served := m.ports(t)
		for _, p := range s.Ports {
			if want := served[p.Name]; p.Port != want.Port || protocol(p.Protocol) != want.Protocol {
				t.Errorf("the service's port %s is %d %s, served is %d %s", p.Name, p.Port, p.Protocol, want.Port, want.Protocol)
			}
		}
		for _, p := range m.daemon.Ports {
			if want := served[p.Name]; p.ContainerPort != want.Port || protocol(p.Protocol) != want.Protocol {
				t.Errorf("the container's port %s is %d %s, served is %d %s", p.Name, p.ContainerPort, p.Protocol, want.Port, want.Protocol)
			}
		}
		if len(m.daemon.Ports) != len(served) {
			t.Errorf("%d ports are declared, %d served", len(m.daemon.Ports), len(served))
		}
	})
}

// The keyring and the token are files that only the pod's group reads.
func TestSecretsAreFiles(t *testing.T) {
	eachMember(t, func(t *testing.T, m member) {
		for _, name := range []string{"cluster-keyring", "router-token-file"} {
			file := argument(t, m.daemon.Args, name)
			i := slices.IndexFunc(m.daemon.VolumeMounts, func(v corev1.VolumeMount) bool {
				return v.MountPath == path.Dir(file) && v.ReadOnly && v.SubPath == "" // a subPath is not updated
			})
			if i < 0 {
				t.Fatalf("nothing is mounted at %s", path.Dir(file))
			}
			v := m.pod.Spec.Volumes[slices.IndexFunc(m.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.daemon.VolumeMounts[i].Name })]
			if v.Secret == nil || v.Secret.DefaultMode == nil || *v.Secret.DefaultMode&0o007 != 0 || m.pod.Spec.SecurityContext.FSGroup == nil {
				t.Errorf("%s: %+v", file, v.VolumeSource)
			}
			text, err := os.ReadFile("../cluster.yaml")
			must(t, err)
			if create := "create secret generic " + v.Secret.SecretName; !strings.Contains(string(text), create) || !strings.Contains(string(text), "--from-file="+path.Base(file)) {
				t.Errorf("nobody is told to make %s in %s", path.Base(file), v.Secret.SecretName)
			}
		}
	})
}

// resolved are arguments as the kubelet hands them on.
func resolved(t *testing.T, c *corev1.Container, fields map[string]string) []string {
	t.Helper()
	values := map[string]string{}
	for _, e := range c.Env {
		if e.ValueFrom != nil {
			v, ok := fields[e.ValueFrom.FieldRef.FieldPath]
			if !ok {
				t.Fatalf("%s is of %s", e.Name, e.ValueFrom.FieldRef.FieldPath)
			}
			values[e.Name] = v
		}
	}
	var args []string
	for _, a := range c.Args {
		for name, v := range values {
			a = strings.ReplaceAll(a, "$("+name+")", v)
		}
		if strings.Contains(a, "$(") {
			t.Errorf("%s has a variable that is not set", a)
		}
		args = append(args, a)
	}
	return args
}

// The daemon of this tree takes a member's arguments: each of them, and all of them.
func TestDaemonTakesAMembersArguments(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "spliced")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./daemon/cmd/spliced")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	eachMember(t, func(t *testing.T, m member) {
		dir := t.TempDir()
		write := func(name, text string) string {
			file := filepath.Join(dir, name)
			must(t, os.WriteFile(file, []byte(text), 0o600))
			return file
		}
		// What the machine of the test may not have.
		here := []string{
			"-arena=16MiB", "-private=16MiB", "-connection-memory=512MiB", "-socket=" + dir + "/spliced.sock",
			"-cluster-keyring=" + write("keyring", base64.StdEncoding.EncodeToString(make([]byte, 32))), "-router-token-file=" + write("token", "0123456789abcdef"),
		}
		fields := map[string]string{"metadata.name": "engine-0", "spec.nodeName": "worker-1.example.com", "status.podIP": "10.1.2.3"}
		args := slices.Concat([]string{"-check"}, resolved(t, &m.daemon, fields), here)
		check := func(args []string) error {
			cmd := exec.CommandContext(t.Context(), binary, args...)
			cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "SPLICED_") })
			out, err := cmd.CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}
		if err := check(args); err != nil {
			t.Error(err)
		}
		// The check itself can fail: without the address of the pod, or the keyring.
		for _, without := range []string{"-cluster-advertise=", "-cluster-keyring="} {
			less := slices.DeleteFunc(slices.Clone(args), func(a string) bool { return strings.HasPrefix(a, without) })
			var exit *exec.ExitError
			if err := check(less); !errors.As(err, &exit) {
				t.Errorf("without %s: %v", without, err)
			}
		}
	})
}

// A policy lets members, monitoring and routers in, each to its ports, and nobody else.
func TestNetworkPolicyLetsInWhoShall(t *testing.T) {
	policy := the[*networkingv1.NetworkPolicy](t, read(t, "cluster-network.yaml"))
	may := map[string][]string{} // by who: ports
	for _, rule := range policy.Spec.Ingress {
		who := "anyone"
		if len(rule.From) > 0 {
			f := rule.From[0]
			switch {
			case f.PodSelector != nil && f.NamespaceSelector == nil:
				who = "members"
				if !maps.Equal(f.PodSelector.MatchLabels, policy.Spec.PodSelector.MatchLabels) {
					t.Errorf("members are %v, and %v are let in", policy.Spec.PodSelector.MatchLabels, f.PodSelector.MatchLabels)
				}
			case f.PodSelector != nil && f.PodSelector.MatchLabels["spliced-router"] != "":
				who = "routers"
			case f.NamespaceSelector.MatchLabels[corev1.LabelMetadataName] == "monitoring":
				who = "monitoring"
			}
		}
		for _, p := range rule.Ports {
			if p.Port.Type != intstr.Int {
				t.Fatalf("port %v", p.Port)
			}
			may[who] = append(may[who], fmt.Sprintf("%d %s", p.Port.IntVal, *p.Protocol))
		}
	}
	want := map[string][]string{
		"members": {"7946 TCP", "7946 UDP", "7947 TCP"}, "monitoring": {"9400 TCP"}, "routers": {"9400 TCP", "5557 TCP", "5558 TCP"}, "anyone": {"8000 TCP"},
	}
	if !maps.EqualFunc(may, want, slices.Equal) {
		t.Errorf("let in are %v, want %v", may, want)
	}
	eachMember(t, func(t *testing.T, m member) {
		if !labels.SelectorFromSet(policy.Spec.PodSelector.MatchLabels).Matches(labels.Set(m.pod.Labels)) {
			t.Errorf("the policy is for %v, the pod is %v", policy.Spec.PodSelector.MatchLabels, m.pod.Labels)
		}
		open := slices.Concat(slices.Collect(maps.Values(may))...)
		for name, p := range m.ports(t) {
			if !slices.Contains(open, fmt.Sprintf("%d %s", p.Port, p.Protocol)) {
				t.Errorf("nobody reaches %s, %d", name, p.Port)
			}
		}
		for _, c := range m.pod.Spec.Containers {
			for _, p := range c.Ports {
				if c.Name == "engine" && !slices.Contains(may["anyone"], fmt.Sprintf("%d TCP", p.ContainerPort)) {
					t.Errorf("the engine's port %d is closed by the policy", p.ContainerPort)
				}
			}
		}
	})
}

func TestPodMonitorScrapesMembers(t *testing.T) {
	monitor := the[*monitoringv1.PodMonitor](t, read(t, "cluster-podmonitor.yaml"))
	eachMember(t, func(t *testing.T, m member) {
		if !labels.SelectorFromSet(monitor.Spec.Selector.MatchLabels).Matches(labels.Set(m.pod.Labels)) {
			t.Errorf("it selects %v, the pod is %v", monitor.Spec.Selector.MatchLabels, m.pod.Labels)
		}
		e := monitor.Spec.PodMetricsEndpoints[0]
		if !slices.ContainsFunc(m.daemon.Ports, func(p corev1.ContainerPort) bool { return e.Port != nil && p.Name == *e.Port }) || e.Path != "/metrics" {
			t.Errorf("it scrapes %v%s", e.Port, e.Path)
		}
	})
}

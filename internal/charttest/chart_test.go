package charttest

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/namespaces"
)

var update = flag.Bool("update", false, "rewrite the expected files under testdata")

// TestRightsAreAsListed shows all that our ServiceAccounts and the cluster's people may do.
// A right that is added shows here, one line each.
func TestRightsAreAsListed(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	always := rights(render(t))
	for _, r := range always {
		b.WriteString(r.name + "\n" + strings.Join(r.lines, ""))
	}
	for _, value := range moreRights() {
		fmt.Fprintf(&b, "\nWith %s also:\n", value)
		more := 0
		for _, r := range rights(render(t, "--set", value)) {
			if lines := beyond(r, always); lines != nil {
				b.WriteString(r.name + "\n" + strings.Join(lines, ""))
				more++
			}
		}
		if more == 0 {
			t.Errorf("%s grants no rights", value)
		}
	}
	golden(t, "rights.txt", b.String())
}

// moreRights is the values of the chart that grant rights beyond its defaults.
func moreRights() []string {
	return []string{"multiclusterServices.enabled=true", "agent.kubeletCertificate=Cluster", "fabric.service.type=LoadBalancer", "monitoring.nodes.enabled=true"}
}

// granted is what a role allows, or a binding: that has no lines.
type granted struct {
	name  string
	lines []string
}

// rights returns what a rendered chart allows.
func rights(found objects) (out []granted) {
	for _, r := range all[*rbacv1.ClusterRole](found) {
		out = append(out, rulesOf("ClusterRole "+r.Name, r.Rules))
	}
	for _, r := range all[*rbacv1.Role](found) {
		out = append(out, rulesOf("Role "+r.Namespace+"/"+r.Name, r.Rules))
	}
	for _, r := range all[*rbacv1.ClusterRoleBinding](found) {
		out = append(out, bindings("everywhere", r.RoleRef, r.Subjects)...)
	}
	for _, r := range all[*rbacv1.RoleBinding](found) {
		out = append(out, bindings("in "+r.Namespace, r.RoleRef, r.Subjects)...)
	}
	return out
}

// beyond returns what of a role is not among what is always allowed; nil if all of it is.
func beyond(r granted, always []granted) []string {
	i := slices.IndexFunc(always, func(a granted) bool { return a.name == r.name })
	if i < 0 {
		return append([]string{}, r.lines...)
	}
	var more []string
	for _, line := range r.lines {
		if !slices.Contains(always[i].lines, line) {
			more = append(more, line)
		}
	}
	return more
}

func rulesOf(name string, rules []rbacv1.PolicyRule) granted {
	out := granted{name: name}
	add := func(format string, args ...any) { out.lines = append(out.lines, fmt.Sprintf(format, args...)) }
	for _, rule := range rules {
		for _, url := range rule.NonResourceURLs {
			add("  URL %s: %s\n", url, strings.Join(rule.Verbs, " "))
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				if group != "" {
					resource += "." + group
				}
				if len(rule.ResourceNames) > 0 {
					resource += " " + strings.Join(rule.ResourceNames, "|")
				}
				add("  %s: %s\n", resource, strings.Join(rule.Verbs, " "))
			}
		}
	}
	return out
}

func bindings(where string, role rbacv1.RoleRef, subjects []rbacv1.Subject) (out []granted) {
	for _, s := range subjects {
		out = append(out, granted{name: fmt.Sprintf("%s %s/%s is %s %s %s", s.Kind, s.Namespace, s.Name, role.Kind, role.Name, where)})
	}
	return out
}

// golden compares with a file under testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./internal/charttest -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update takes what is):\n%s", path, diff)
	}
}

func TestClusterRolesNameWhatTheyAllow(t *testing.T) {
	t.Parallel()
	var more []string
	for _, value := range moreRights() {
		more = append(more, "--set", value)
	}
	for name, args := range map[string][]string{"as it is": nil, "with all rights": more} {
		t.Run(name, func(t *testing.T) { nothingUnnamed(t, render(t, args...)) })
	}
}

func nothingUnnamed(t *testing.T, found objects) {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{}
	for _, r := range all[*rbacv1.ClusterRole](found) {
		rules[r.Name] = r.Rules
	}
	for _, r := range all[*rbacv1.Role](found) {
		rules[r.Namespace+"/"+r.Name] = r.Rules
	}
	for name, rules := range rules {
		for _, r := range rules {
			for _, list := range [][]string{r.APIGroups, r.Resources, r.Verbs} {
				if slices.Contains(list, "*") {
					t.Errorf("%s: a star in %v", name, r)
				}
			}
			for _, verb := range []string{"escalate", "impersonate", "deletecollection"} {
				if slices.Contains(r.Verbs, verb) {
					t.Errorf("%s: %s of %v", name, verb, r.Resources)
				}
			}
			if slices.Contains(r.Verbs, "bind") && len(r.ResourceNames) == 0 {
				t.Errorf("%s: may bind any role", name)
			}
			// This one is bound where a namespace's owner lets pods abroad call their home, and by no one else.
			if slices.Contains(r.Resources, "serviceaccounts/token") && name != namespaces.HomeAPIClusterRole {
				t.Errorf("%s: may make tokens", name)
			}
		}
	}
	// A ClusterRoleBinding grants rights in every namespace.
	for _, b := range all[*rbacv1.ClusterRoleBinding](found) {
		if b.RoleRef.Name == "cluster-admin" {
			t.Errorf("%s grants cluster-admin", b.Name)
		}
		for _, r := range rules[b.RoleRef.Name] {
			for _, resource := range []string{"secrets", "configmaps", "pods/exec", "pods/attach", "pods/portforward", "serviceaccounts", "serviceaccounts/token"} {
				if slices.Contains(r.Resources, resource) {
					t.Errorf("%s grants %v of %s in every namespace", b.Name, r.Verbs, resource)
				}
			}
			if slices.Contains(r.Resources, "pods") && slices.Contains(r.Verbs, "create") {
				t.Errorf("%s may create pods in every namespace", b.Name)
			}
		}
	}
}

func TestNoWebhookCanStopTheCluster(t *testing.T) {
	t.Parallel()
	for _, o := range render(t) {
		switch o.kind {
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "APIService":
			t.Errorf("the chart has a %s", o.kind)
		case "CustomResourceDefinition":
			crd, ok := o.Object.(*apiextensionsv1.CustomResourceDefinition)
			if ok && crd.Spec.Conversion != nil && crd.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter {
				t.Errorf("%s converts through a webhook", crd.Name)
			}
		}
	}
}

// violations returns the names of the Pod Security checks that a pod fails.
func violations(t *testing.T, level api.Level, meta metav1.ObjectMeta, spec corev1.PodSpec) []string {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var failed []string
	for _, r := range evaluator.EvaluatePod(api.LevelVersion{Level: level, Version: api.LatestVersion()}, &meta, &spec) {
		if !r.Allowed {
			failed = append(failed, r.ForbiddenReason)
		}
	}
	slices.Sort(failed)
	return failed
}

func TestAgentMeetsRestrictedAndFabricNeedsWhatItNamesOnly(t *testing.T) {
	t.Parallel()
	found := render(t)
	agent := one[*appsv1.Deployment](t, found, "entente-agent").Spec.Template
	cleanup := one[*batchv1.Job](t, found, "entente-cleanup").Spec.Template
	fabric := one[*appsv1.DaemonSet](t, found, "entente-fabric").Spec.Template
	resolver := one[*appsv1.Deployment](t, found, "entente-dns").Spec.Template
	for name, c := range map[string]struct {
		pod   corev1.PodTemplateSpec
		level api.Level
		want  []string
	}{
		"agent":   {pod: agent, level: api.LevelRestricted},
		"cleanup": {pod: cleanup, level: api.LevelRestricted},
		"dns":     {pod: resolver, level: api.LevelRestricted},
		"fabric": {pod: fabric, level: api.LevelBaseline, want: []string{
			"host namespaces",          // tunnels and routes are the node's
			"hostPath volumes",         // /dev/net/tun, and what it keeps for a restart
			"non-default capabilities", // NET_ADMIN
			"probe or lifecycle host",  // loopback, where it listens
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, violations(t, c.level, c.pod.ObjectMeta, c.pod.Spec)); diff != "" {
				t.Errorf("failed checks of %s (-want +got):\n%s", c.level, diff)
			}
			for _, container := range c.pod.Spec.Containers {
				sc := container.SecurityContext
				if sc == nil || sc.ReadOnlyRootFilesystem == nil || !*sc.ReadOnlyRootFilesystem ||
					sc.AllowPrivilegeEscalation == nil || *sc.AllowPrivilegeEscalation || sc.Privileged != nil {
					t.Errorf("%s: %+v; want a read-only root and no way to more rights", container.Name, sc)
				}
				if container.Resources.Limits.Memory().IsZero() || container.Resources.Requests.Cpu().IsZero() {
					t.Errorf("%s: no memory limit or no CPU request", container.Name)
				}
			}
		})
	}
	for _, container := range fabric.Spec.Containers {
		want := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}}
		if diff := cmp.Diff(want, container.SecurityContext.Capabilities); diff != "" {
			t.Errorf("%s (-want +got):\n%s", container.Name, diff)
		}
	}
	tokens := 0
	for _, container := range fabric.Spec.Containers {
		for _, m := range container.VolumeMounts {
			if m.Name == "token" {
				tokens++
			}
		}
	}
	if tokens != 1 || *fabric.Spec.AutomountServiceAccountToken {
		t.Errorf("%d containers of the fabric have a token; want the one that calls the API server", tokens)
	}
}

// binary builds entented.
func binary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "entented")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", path, "./cmd/entented")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build entented: %v\n%s", err, out)
	}
	return path
}

func TestTheBinaryTakesWhatTheChartPasses(t *testing.T) {
	t.Parallel()
	found := render(t, "--values", filepath.Join("testdata", "all-values.yaml"))
	binary := binary(t)
	containers := slices.Concat(
		one[*appsv1.Deployment](t, found, "entente-agent").Spec.Template.Spec.Containers,
		one[*appsv1.DaemonSet](t, found, "entente-fabric").Spec.Template.Spec.Containers,
		one[*appsv1.Deployment](t, found, "entente-dns").Spec.Template.Spec.Containers,
		one[*batchv1.Job](t, found, "entente-cleanup").Spec.Template.Spec.Containers)
	if len(containers) != 5 {
		t.Fatalf("%d containers, want 5", len(containers))
	}
	for _, c := range containers {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			// Flags are read before help is shown; one that does not exist is an error.
			out, err := exec.CommandContext(t.Context(), binary, append(c.Args, "--help")...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), c.Args[0]) {
				t.Errorf("entented %s: %v\n%s", strings.Join(c.Args, " "), err, out)
			}
		})
	}
}

// Of two agents that are ready one leads. Services lead to it alone; what drains nodes and replaces pods
// counts both.
func TestAnAgentStandsBy(t *testing.T) {
	t.Parallel()
	for replicas, lease := range map[string]string{"1": "20s", "2": "6s"} {
		found := render(t, "--set", "agent.replicas="+replicas)
		agent := one[*appsv1.Deployment](t, found, "entente-agent")
		if got := strconv.Itoa(int(*agent.Spec.Replicas)); got != replicas {
			t.Errorf("%s replicas, want %s", got, replicas)
		}
		if up := agent.Spec.Strategy.RollingUpdate; up == nil || up.MaxUnavailable.IntValue() != 0 || up.MaxSurge.IntValue() != 1 {
			t.Errorf("with %s replicas the strategy is %+v", replicas, agent.Spec.Strategy)
		}
		if args := agent.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--lease-duration="+lease) {
			t.Errorf("with %s replicas the arguments are %q", replicas, args)
		}
		if agent.Spec.Template.Labels[v1alpha1.LabelLeader] != "" {
			t.Error("all pods of the agent are labelled as its leader")
		}
		for _, name := range []string{"entente-agent", "entente-peer"} {
			selector := maps.Clone(one[*corev1.Service](t, found, name).Spec.Selector)
			if selector[v1alpha1.LabelLeader] != "true" {
				t.Errorf("Service %s selects %v", name, selector)
			}
			delete(selector, v1alpha1.LabelLeader)
			if diff := cmp.Diff(agent.Spec.Selector.MatchLabels, selector); diff != "" {
				t.Errorf("Service %s (-want +got):\n%s", name, diff)
			}
		}
		budgets := 0
		for _, b := range all[*policyv1.PodDisruptionBudget](found) {
			if b.Name == "entente-agent" {
				budgets++
				if diff := cmp.Diff(agent.Spec.Selector.MatchLabels, b.Spec.Selector.MatchLabels); diff != "" || b.Spec.MaxUnavailable.IntValue() != 1 {
					t.Errorf("the budget is %+v", b.Spec)
				}
			}
		}
		if want := map[string]int{"1": 0, "2": 1}[replicas]; budgets != want {
			t.Errorf("with %s replicas there are %d budgets, want %d: with one, a node with it could not be drained", replicas, budgets, want)
		}
	}
}

func TestValuesReachTheProcesses(t *testing.T) {
	t.Parallel()
	found := render(t, "--values", filepath.Join("testdata", "all-values.yaml"))
	agent := one[*appsv1.Deployment](t, found, "entente-agent").Spec.Template
	fabric := one[*appsv1.DaemonSet](t, found, "entente-fabric").Spec.Template
	job := one[*batchv1.Job](t, found, "entente-cleanup").Spec.Template
	resolver := one[*appsv1.Deployment](t, found, "entente-dns").Spec.Template
	for name, c := range map[string]struct{ got, want []string }{
		"agent": {agent.Spec.Containers[0].Args, []string{
			"agent", "--log-level=debug", "--log-format=text", "--peer-service=entente-peer", "--lease-duration=6s", "--kubelet-certificate=Cluster", "--node-metrics", "--placement=policy/v1", "--cluster-name=milano",
			"--peer-endpoint=a.example:7443", "--peer-endpoint=[2001:db8::1]:443",
			"--cluster-domain=k8s.milano.example", "--dns-service=entente-dns", "--home-api-address=:7452", "--home-api-service=entente-home-api", "--pod-cidr=10.0.0.0/16", "--service-cidr=10.96.0.0/12", "--alias-pool=100.64.0.0/10", "--external-hosts=192.168.7.0/24", "--gateways=2", "--direct=Gateways", "--preshared-key-every=48h",
			"--relay-address=:7449", "--relay-rate=1Mi", "--relay-total-rate=2M", "--carry-for-peers=Contracts", "--carry-through-peers=false",
			"--fabric-endpoint=gw-{node}.example.com:4500", "--fabric-endpoint=[2001:db8::1]",
			"--fabric-service=LoadBalancer", "--fabric-service-class=example.com/lb", "--fabric-service-families=SingleStack", "--fabric-service-annotation=example.com/pool=a,b=c",
			"--discovery-domain=example.com", "--discovery-resolver=192.0.2.53",
			"--discovery-update-server=ns.example.com:53", "--discovery-update-zone=example.com", "--discovery-update-domain=clusters.example.com",
			"--discovery-update-secret=dns-key", "--discovery-update-secret-key=tsig", "--discovery-update-key-name=milano",
			"--discovery-update-algorithm=hmac-sha512", "--discovery-update-ttl=10m",
		}},
		"node": {fabric.Spec.Containers[0].Args, []string{
			"node", "--log-level=debug", "--log-format=text", "--interface=wg7", "--wireguard-port=4500", "--mtu=1400",
			"--pod-cidr=10.0.0.0/16", "--service-cidr=10.96.0.0/12", "--alias-pool=100.64.0.0/10", "--key-every=96h",
			"--relay-agent=entente-agent.entente-system.svc:7449", "--state-directory=/var/lib/entente", "--health-address=0.0.0.0:9000", "--metrics-address=:9100", "--metrics-certificate=/etc/entente/metrics",
		}},
		"wireguard": {fabric.Spec.Containers[1].Args, []string{
			"wireguard", "--log-level=debug", "--log-format=text", "--interface=wg7",
		}},
		"dns": {resolver.Spec.Containers[0].Args, []string{
			"dns", "--log-level=debug", "--log-format=text", "--cluster-domain=k8s.milano.example", "--show-cluster-names",
		}},
		"cleanup": {job.Spec.Containers[0].Args, []string{
			"cleanup", "--log-level=debug", "--log-format=text", "--timeout=30s", "--keep-identity",
		}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if i := slices.IndexFunc(fabric.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "state" }); i < 0 || fabric.Spec.Volumes[i].HostPath.Path != "/run/entente" {
		t.Error("the nodes' state is not in the directory that was named")
	}
	const image = "registry.example/entente@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, c := range slices.Concat(agent.Spec.Containers, resolver.Spec.Containers, fabric.Spec.Containers, job.Spec.Containers) {
		if c.Image != image {
			t.Errorf("%s runs %s, want %s", c.Name, c.Image, image)
		}
	}
	if got := agent.Labels["team"]; got != "net" {
		t.Errorf("label of the pod template's patch is %q", got)
	}
	if got := agent.Labels["app.kubernetes.io/component"]; got != "agent" {
		t.Errorf("the patch took away what selects the pods: component is %q", got)
	}
	if got := fabric.Spec.NodeSelector["pool"]; got != "edge" || len(fabric.Spec.Containers) != 2 {
		t.Errorf("node selector %q, %d containers; want edge and 2", got, len(fabric.Spec.Containers))
	}
	// The cluster's own DNS is asked only where its names are to be seen.
	if hidden := one[*appsv1.Deployment](t, render(t), "entente-dns").Spec.Template.Spec.DNSPolicy; hidden != corev1.DNSDefault || resolver.Spec.DNSPolicy != corev1.DNSClusterFirst {
		t.Errorf("the resolver asks by %s where names are hidden, by %s where they are visible", hidden, resolver.Spec.DNSPolicy)
	}
	if got := one[*corev1.Service](t, found, "entente-dns").Spec.ClusterIP; got != "10.96.0.53" || resolver.Spec.NodeSelector["pool"] != "dns" {
		t.Errorf("entente-dns has the address %s and the node selector %v", got, resolver.Spec.NodeSelector)
	}
	service := one[*corev1.Service](t, found, "entente-peer")
	if service.Spec.Type != corev1.ServiceTypeLoadBalancer || service.Spec.Ports[0].Port != 443 || service.Spec.Ports[0].NodePort != 0 {
		t.Errorf("entente-peer is %v, port %+v", service.Spec.Type, service.Spec.Ports)
	}
	policy := one[*v1alpha1.PeeringPolicy](t, found, "entente-default").Spec
	if policy.Accept != v1alpha1.AcceptNever || *policy.Limits.PercentOfFree != 10 || policy.Limits.Resources.Cpu().String() != "4" {
		t.Errorf("policy %+v", policy)
	}
}

// The API server's policies have the default from here, so the chart cannot leave it to the binary.
func TestAliasPoolIsTheAgentsDefault(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), binary(t), "agent", "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, flag, _ := strings.Cut(string(out), "--alias-pool ")
	flag, _, _ = strings.Cut(flag, "\n")
	for _, arg := range one[*appsv1.Deployment](t, render(t), "entente-agent").Spec.Template.Spec.Containers[0].Args {
		if prefix, ok := strings.CutPrefix(arg, "--alias-pool="); ok && !strings.Contains(flag, prefix) {
			t.Errorf("the chart passes %s; the binary has %q", arg, flag)
		}
	}
}

// All traffic with other clusters passes through one process of each node.
func TestTunnelProcessHasItsShareOfTheProcessor(t *testing.T) {
	t.Parallel()
	for _, c := range one[*appsv1.DaemonSet](t, render(t), "entente-fabric").Spec.Template.Spec.Containers {
		if c.Name != "wireguard" {
			continue
		}
		if request := c.Resources.Requests.Cpu().MilliValue(); request < 200 || request > 300 {
			t.Errorf("it requests %dm, want about 250m", request)
		}
		if !c.Resources.Limits.Cpu().IsZero() {
			t.Errorf("it is limited to %s: that would delay packets on an idle node", c.Resources.Limits.Cpu())
		}
		return
	}
	t.Error("there is no container wireguard")
}

func TestImageIsTheChartsVersion(t *testing.T) {
	t.Parallel()
	agent := one[*appsv1.Deployment](t, render(t), "entente-agent").Spec.Template
	want := "entente/entente:" + agent.Labels["app.kubernetes.io/version"]
	if got := agent.Spec.Containers[0].Image; got != want || strings.HasSuffix(want, ":") {
		t.Errorf("image %q, want %q", got, want)
	}
}

func TestPartsCanBeLeftOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  string
		gone func(object) bool
	}{
		"definitions": {"crds.enabled=false", func(o object) bool { return o.kind == "CustomResourceDefinition" }},
		"policy": {"policy.enabled=false", func(o object) bool {
			config, ok := o.Object.(*corev1.ConfigMap)
			return ok && o.GetName() == "entente-policies" && config.Data["entente-default"] != ""
		}},
		"placement": {"placement.enabled=false", func(o object) bool { return strings.HasPrefix(o.kind, "MutatingAdmissionPolicy") }},
		"cleanup":   {"cleanup.enabled=false", func(o object) bool { return o.GetName() == "entente-cleanup" }},
		"userspace": {"fabric.userspace.enabled=false", func(o object) bool {
			ds, ok := o.Object.(*appsv1.DaemonSet)
			return ok && (len(ds.Spec.Template.Spec.Containers) != 1 || slices.ContainsFunc(ds.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil && v.Name != "state" }))
		}},
		"state on nodes": {"fabric.stateDirectory=", func(o object) bool {
			ds, ok := o.Object.(*appsv1.DaemonSet)
			return ok && (slices.Contains(ds.Spec.Template.Spec.Containers[0].Args, "--state-directory=/var/lib/entente") ||
				slices.ContainsFunc(ds.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "state" }))
		}},
		"dns": {"dns.enabled=false", func(o object) bool {
			d, ok := o.Object.(*appsv1.Deployment)
			return o.GetName() == "entente-dns" || (ok && slices.Contains(d.Spec.Template.Spec.Containers[0].Args, "--dns-service=entente-dns"))
		}},
		"network policy": {"networkPolicy.enabled=false", func(o object) bool { return o.kind == "NetworkPolicy" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			with := render(t)
			if on := strings.ReplaceAll(c.set, "=false", "=true"); on != c.set {
				with = render(t, "--set", on)
			}
			without := render(t, "--set", c.set)
			if name != "userspace" && !slices.ContainsFunc(with, c.gone) {
				t.Errorf("not there with it")
			}
			if i := slices.IndexFunc(without, c.gone); i >= 0 {
				t.Errorf("still there without it: %s %s", without[i].kind, without[i].GetName())
			}
		})
	}
}

func TestDefinitionsAreThoseOfTheAPI(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(chart, "files", "crds", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crds := all[*apiextensionsv1.CustomResourceDefinition](render(t, "--set", "crds.keep=true"))
	if len(files) == 0 || len(crds) != len(files) {
		t.Errorf("%d definitions of %d files", len(crds), len(files))
	}
	for _, crd := range crds {
		if crd.Annotations["helm.sh/resource-policy"] != "keep" || crd.Annotations["controller-gen.kubebuilder.io/version"] == "" {
			t.Errorf("%s has annotations %v", crd.Name, crd.Annotations)
		}
	}
	for _, crd := range all[*apiextensionsv1.CustomResourceDefinition](render(t)) {
		if _, ok := crd.Annotations["helm.sh/resource-policy"]; ok {
			t.Errorf("%s would stay after an uninstall", crd.Name)
		}
	}
}

func TestNotesSayHowToSeeWhatDiscoveryFinds(t *testing.T) {
	t.Parallel()
	const found, none = "entente discover\n", "trustOnFirstUse peers with no cluster"
	const first = "discovery.automatic.enabled=true,discovery.automatic.trustOnFirstUse=true"
	for set, want := range map[string][]string{
		"dns.enabled=true":                    {},
		"discovery.lan.enabled=true":          {found, "discovered on LANs. What"},
		"discovery.domains={a.test,b.test}":   {found, "discovered in a.test, b.test. What"},
		"discovery.automatic=null":            {},
		first:                                 {none},
		first + ",discovery.lan.enabled=true": {found},
		first + ",discovery.domains={a.test}": {found},
		first + ",discovery.domains={a.test},discovery.automatic.sources={LAN}": {found, none},
		first + ",discovery.domains={a.test},discovery.automatic.sources=null":  {found},
		"discovery.domains={a.test},discovery.lan.enabled=true":                 {found, "discovered on LANs and in a.test. What"},
	} {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), helm(t), "install", "entente", chart, "--dry-run=client", "--set", set)
			cmd.Env = append(os.Environ(), "KUBECONFIG="+os.DevNull, "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
			out, err := cmd.CombinedOutput()
			_, notes, ok := strings.Cut(string(out), "NOTES:")
			if err != nil || !ok {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, line := range want {
				if !strings.Contains(notes, line) {
					t.Errorf("they do not contain %q:\n%s", line, notes)
				}
			}
			for _, line := range []string{found, none} {
				if !slices.Contains(want, line) && strings.Contains(notes, line) {
					t.Errorf("they contain %q:\n%s", line, notes)
				}
			}
		})
	}
}

func TestInvalidValuesAreRefused(t *testing.T) {
	t.Parallel()
	for _, set := range []string{
		"agent.replicas=0", "agent.replicas=9", "agent.kubeletCertificate=Any", "nonsense=1", "image.tag=a b", "image.digest=sha256:1", "image.pullPolicy=Sometimes",
		"cluster.name=Not_A_Label", "cluster.podCIDRs={10.0.0.0}", "log.level=loud",
		"peer.endpoints={nowhere}", "peer.endpoints={https://a:1}", "peer.service.type=ExternalName", "peer.service.nodePort=99999",
		"fabric.wireguardPort=0", "fabric.wireguardPort=no", "fabric.mtu=100", "fabric.interface=a-name-that-is-too-long", "fabric.updateStrategy.type=Never",
		"fabric.userspace.enabled=maybe", "agent.resources.limits.memory=much", "agent.podTemplate.status.x=1",
		"policy.accept=Perhaps", "policy.percentOfFree=101", "policy.podSecurity=none", "policy.contractDuration=soon",
		"policy.contractDuration=30d", "policy.contractDuration=-5h", "policy.contractDuration=0s", "policy.notice=1d", "policy.resources.cpu=-1", "policy.resources.cpuu=2",
		"policy.total.resources.cpu=-1", "policy.total.resources.storage=1Gi", "policy.price.currency=EUR,policy.price.perHour.cpuu=0.1", "policy.limitRange.container.max.cpu=-1",
		"policy.pools[0].name=a,policy.pools[0].nodeSelector.a=b,policy.pools[0].limits.percentOffree=1", "policy.pools[0].name=a,policy.pools[0].nodeSelector.a=b,policy.pools[0].price.perhour.cpu=1",
		"cleanup.timeout=2", "cluster.domain=K8s.example", "cluster.domain=example.", "dns.replicas=0", "dns.clusterIP=None", "dns.clusterNames=Some", "dns.enabled=maybe",
		"discovery.update.server=ns.example.com", "discovery.update.algorithm=hmac-md5", "discovery.update.ttl=5", "discovery.update.secret=abc",
		"discovery.lan.enabled=maybe", "discovery.lan.interfaces={a/b}", "discovery.lan.interfaces={a*b}", "discovery.lan.interfaces={a-name-that-is-too-long}",
		"discovery.domains={bad domain!}", "discovery.domains={example.com,_entente._tcp.example.com}", `discovery.domains={""}`,
		"discovery.resolvers={192.0.2.300}", "discovery.resolvers={2001:db8::1:x}",
	} {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			if _, err := template(t, "--set", set); err == nil || !strings.Contains(err.Error(), "schema") {
				t.Errorf("got %v, want the schema to refuse it", err)
			}
		})
	}
}

// The agent could not create a namespace of a level that it is not granted, so nothing could run.
func TestPodSecurityIsOneOfTheLevels(t *testing.T) {
	t.Parallel()
	const want = "policy.podSecurity is privileged, and policy.podSecurityLevels lacks it"
	if _, err := template(t, "--set", "policy.podSecurity=privileged"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	render(t, "--set", "policy.podSecurity=privileged", "--set", "policy.podSecurityLevels={baseline,privileged}")
	render(t, "--set", "policy.pools[0].name=a,policy.pools[0].nodeSelector.a=b,policy.pools[0].limits.percentOfFree=10,policy.pools[0].price.currency=EUR", "--set-string", "policy.pools[0].price.perHour.cpu=1",
		"--set", `policy.resources.nvidia\.com/gpu=2,policy.resources.hugepages-2Mi=1Gi`)
}

// A user reads the chart's error: which value, what is wrong with it and what is right.
func TestAddressesAreRefusedInWords(t *testing.T) {
	t.Parallel()
	const form, port = "neither an IP address nor ADDRESS:PORT", "its port is not from 1 to 65535"
	for set, want := range map[string]string{
		"discovery.resolvers={192.0.2.1,foo}":           `discovery.resolvers: "foo" is ` + form,
		"discovery.resolvers[0]=":                       `discovery.resolvers: "" is ` + form,
		"discovery.resolvers={ns.example.com:53}":       `"ns.example.com:53" is ` + form,
		"discovery.resolvers={192.0.2.300:53}":          form,
		"discovery.resolvers={[192.0.2.1]:53}":          form,
		"discovery.resolvers={[2001:db8::1]}":           form,
		"discovery.resolvers={192.0.2.1:65536}":         `discovery.resolvers: "192.0.2.1:65536": ` + port,
		"discovery.resolvers={[2001:db8::1]:999999999}": port,
		"discovery.resolvers={192.0.2.1:0}":             port,
		"discovery.resolvers={192.0.2.300}":             "not valid ipv4",
		"discovery.resolvers={2001:db8:::1}":            "not valid ipv6",
		"peer.endpoints={a.example:65536}":              `peer.endpoints: "a.example:65536": ` + port,
		"discovery.update.server=ns.example.com:65536,discovery.update.zone=a.test,discovery.update.keySecret.name=k": `discovery.update.server: "ns.example.com:65536": ` + port,
	} {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			if _, err := template(t, "--set", set); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "pattern") {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
	render(t, "--set", "discovery.resolvers={192.0.2.1,192.0.2.1:65535,2001:db8::1,2001:db8::0,[2001:db8::1]:1,::ffff:192.0.2.1}", "--set", "peer.endpoints={a.example:65535,[2001:db8::1]:443}")
	for _, server := range []string{"ns.example.com", "192.0.2.1:53", "2001:db8::0", "[2001:db8::1]:53", "[2001:db8::1]"} {
		render(t, "--set", "discovery.update.server="+server+",discovery.update.zone=a.test,discovery.update.keySecret.name=k")
	}
}

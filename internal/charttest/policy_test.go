package charttest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	labelset "k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/chartpolicies"
	"github.com/entente-dev/entente/internal/market"
)

func TestThePolicyIsAsTheValuesSay(t *testing.T) {
	t.Parallel()
	policy := func(args ...string) v1alpha1.PeeringPolicySpec {
		t.Helper()
		return one[*v1alpha1.PeeringPolicy](t, render(t, args...), "entente-default").Spec
	}
	hundred, fifty, ten, eighty, twice := int32(100), int32(50), int32(10), int32(80), int32(200)
	duration := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	// A value that is not there writes nothing, so that the definition's default holds.
	want := v1alpha1.PeeringPolicySpec{
		Accept: v1alpha1.AcceptAutomatic, Limits: v1alpha1.PolicyLimits{PercentOfFree: &fifty, OvercommitPercent: &hundred},
		Renewal: v1alpha1.RenewalAutomatic, Notice: duration(time.Hour), StatementPeriod: duration(time.Hour),
		HomeAPI: v1alpha1.HomeAPIDenied, NetworkPolicies: v1alpha1.NetworkPoliciesDenied, PodSecurity: "baseline", ContractDuration: duration(8760 * time.Hour),
		NodeSelectorKeys: market.DefaultNodeSelectorKeys(),
	}
	if diff := cmp.Diff(want, policy()); diff != "" {
		t.Errorf("by default (-want +got)\n%s", diff)
	}
	want = v1alpha1.PeeringPolicySpec{
		Accept: v1alpha1.AcceptAfterApproval,
		Limits: v1alpha1.PolicyLimits{
			PercentOfFree: &ten, Resources: corev1.ResourceList{"cpu": resource.MustParse("4")}, OvercommitPercent: &twice,
			Total: &v1alpha1.TotalLimits{PercentOfFree: &eighty, Resources: corev1.ResourceList{"cpu": resource.MustParse("16")}},
		},
		Price: &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "0.02", "nvidia.com/gpu": "1"}},
		Pools: []v1alpha1.NodePool{
			{
				Name: "gpu", NodeSelector: map[string]v1alpha1.LabelValue{"nodes": "gpu"}, Limits: &v1alpha1.PolicyLimits{PercentOfFree: &eighty}, NodeLabels: map[string]string{"model": "h100"},
				Tolerations: []v1alpha1.PoolToleration{{Key: "gpu", Operator: "Exists", Effect: "NoSchedule"}, {Key: "dedicated", Value: "shared"}},
			},
			{Name: "default", NodeSelector: map[string]v1alpha1.LabelValue{"nodes": "plain"}},
		},
		Renewal: v1alpha1.RenewalNever, Notice: duration(0), StatementPeriod: duration(24 * time.Hour),
		LimitRange: &v1alpha1.LimitRange{
			Container: &v1alpha1.ContainerLimitRange{
				DefaultRequest: v1alpha1.LimitedResources{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi")},
				Max:            v1alpha1.LimitedResources{"memory": resource.MustParse("1Gi")},
			},
			Pod: &v1alpha1.PodLimitRange{Max: v1alpha1.LimitedResources{"cpu": resource.MustParse("8")}},
		},
		RuntimeClasses: []string{"gvisor"}, StorageClasses: []string{"fast", "slow"},
		Services: []v1alpha1.ServiceExports{
			{Namespace: "shop", Names: []string{"cart", "db"}},
			{Namespace: "media", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "edge"}}},
		},
		NodeSelectorKeys: []string{"topology.kubernetes.io/zone", "pool"},
		HomeAPI:          v1alpha1.HomeAPIAllowed,
		NetworkPolicies:  v1alpha1.NetworkPoliciesAllowed,
		PodSecurity:      "restricted", ContractDuration: duration(time.Hour), NodeLabels: map[string]string{"topology.kubernetes.io/region": "it"},
	}
	got := policy("--values", filepath.Join("testdata", "policy-values.yaml"))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// None is not the definition's default.
	if got := policy("--set-json", "policy.nodeSelectorKeys=[]"); got.NodeSelectorKeys == nil || len(got.NodeSelectorKeys) != 0 {
		t.Errorf("without keys consumers choose nodes by %q", got.NodeSelectorKeys)
	}
	// An upgrade that reuses the values of a chart that had fewer of them.
	if got := policy("--set", "policy.price=null", "--set", "policy.total=null", "--set", "policy.nodeSelectorKeys=null"); got.Price != nil || got.Limits.Total != nil || got.NodeSelectorKeys != nil {
		t.Errorf("got %+v", got)
	}
	if _, err := template(t, "--set-string", "policy.price.perHour.cpu=0.02"); err == nil || !strings.Contains(err.Error(), "currency") {
		t.Errorf("a price without a currency: got %v", err)
	}
	for _, set := range []string{
		"policy.price.perHour.cpu=2", "policy.price.currency=euro", "policy.overcommitPercent=0", "policy.total.percentOfFree=101",
		"policy.total.cpu=1", "policy.renewal=Sometimes", "policy.notice=later", "policy.statementPeriod=1", "policy.runtimeClasses={A b}", "policy.nodeSelectorKeys={a b}",
		"policy.pools[0].name=gpu", "policy.pools[0].name=GPU,policy.pools[0].nodeSelector.a=b", "policy.pools[0].name=gpu,policy.pools[0].nodeSelector.a=b,policy.pools[0].nodes=c",
		"policy.pools[0].name=gpu,policy.pools[0].nodeSelector.a=b,policy.pools[0].tolerations[0].operator=Exists", "policy.pools[0].name=gpu,policy.pools[0].nodeSelector.a=b,policy.pools[0].tolerations[0].key=c,policy.pools[0].tolerations[0].tolerationSeconds=3",
		"policy.limitRange.container.max.pods=1", "policy.limitRange.pod.default.cpu=1", "policy.limitRange.container.min.cpu=much",
		"policy.services[0].names={a}", "policy.services[0].namespace=A", "policy.services[0].namespace=a,policy.services[0].names={}",
		"policy.services[0].namespace=a,policy.services[0].names={b},policy.services[0].selector.matchLabels.c=d",
	} {
		if _, err := template(t, "--set", set); err == nil || !strings.Contains(err.Error(), "schema") {
			t.Errorf("%s: got %v, want the schema to refuse it", set, err)
		}
	}
}

func TestTheAutomaticPolicyIsAsTheValuesSay(t *testing.T) {
	t.Parallel()
	const id = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	objects := render(t, "--values", filepath.Join("testdata", "policy-values.yaml"),
		"--set", "discovery.automatic.enabled=true,discovery.automatic.clusterIDs={"+id+"},discovery.automatic.sources={DNS},discovery.automatic.direction=Consume",
		"--set", "discovery.automatic.group.name=garage,discovery.automatic.group.secret=0123456789abcdef,discovery.automatic.namespaces={shop}",
		"--set-string", "discovery.automatic.priceCeiling.currency=EUR,discovery.automatic.priceCeiling.amount=0.5,discovery.automatic.resources.cpu=4")
	got := one[*v1alpha1.PeeringPolicy](t, objects, "entente-automatic").Spec
	want := &v1alpha1.AutomaticPeering{
		ClusterIDs: []string{id}, Sources: []v1alpha1.Source{v1alpha1.SourceDNS}, Direction: v1alpha1.DirectionConsume,
		Group:        &v1alpha1.PeeringGroup{Name: "garage", SecretRef: v1alpha1.SecretKey{Name: "entente-automatic-group", Key: "secret"}},
		PriceCeiling: &v1alpha1.Money{Currency: "EUR", Amount: "0.5"}, Resources: corev1.ResourceList{"cpu": resource.MustParse("4")},
		Namespaces: []string{"shop"},
	}
	if diff := cmp.Diff(want, got.Automatic); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if secret := one[*corev1.Secret](t, objects, "entente-automatic-group"); secret.StringData["secret"] != "0123456789abcdef" {
		t.Errorf("the Secret has %v", secret.StringData)
	}
	// It offers on the terms of the other one.
	got.Automatic = nil
	if diff := cmp.Diff(one[*v1alpha1.PeeringPolicy](t, objects, "entente-default").Spec, got); diff != "" {
		t.Errorf("terms (-default +automatic)\n%s", diff)
	}
	objects = render(t, "--set", "discovery.automatic.enabled=true,discovery.automatic.group.name=garage,discovery.automatic.group.secretRef.name=own")
	if ref := one[*v1alpha1.PeeringPolicy](t, objects, "entente-automatic").Spec.Automatic.Group.SecretRef; ref.Name != "own" || ref.Key != "secret" {
		t.Errorf("the Secret is %+v", ref)
	}
	for set, says := range map[string]string{
		"enabled=true": "choose whom to trust",
		"enabled=true,discovery.automatic.group.name=a":                                                                                                    "no secret",
		"enabled=true,discovery.automatic.group.name=a,discovery.automatic.group.secret=short":                                                             "16 characters",
		"enabled=true,discovery.automatic.group.secret=0123456789abcdef,discovery.automatic.trustOnFirstUse=true":                                          "no name",
		"enabled=true,discovery.automatic.group.name=a,discovery.automatic.group.secretRef.name=b,discovery.automatic.trustOnFirstUse=true":                "trustOnFirstUse",
		"enabled=true,discovery.automatic.group.name=a,discovery.automatic.group.secretRef.name=b,discovery.automatic.group.secret=abc":                    "not both",
		"enabled=true,discovery.automatic.trustOnFirstUse=true,discovery.automatic.priceCeiling.amount=1.5":                                                "currency",
		"enabled=true,discovery.automatic.trustOnFirstUse=true,discovery.automatic.priceCeiling.currency=EUR,discovery.automatic.priceCeiling.amount=0.50": "0.5, not 0.50",
		"enabled=yes": "schema", "clusterIDs={x}": "schema", "group.name=A": "schema", "direction=Any": "schema", "sources={Word}": "schema", "namespaces={A}": "schema",
	} {
		if _, err := template(t, "--set-string", "cluster.name=x", "--set", "discovery.automatic."+set); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want it to say %q", set, err, says)
		}
	}
}

// Helm does not delete a hook that is not rendered any more, so what is off takes the
// place of what was on, offers nothing to nobody, and is deleted at once.
func TestAPolicyThatIsOffIsRemoved(t *testing.T) {
	t.Parallel()
	const automatic = "discovery.automatic.enabled=true,discovery.automatic.trustOnFirstUse=true"
	for set, off := range map[string][]string{
		"policy.enabled=true":                      {"entente-automatic"},
		"policy.enabled=false":                     {"entente-default", "entente-automatic"},
		automatic:                                  nil,
		automatic + ",policy.enabled=false":        {"entente-default"},
		"discovery.automatic.trustOnFirstUse=true": {"entente-automatic"},
	} {
		policies := all[*v1alpha1.PeeringPolicy](render(t, "--set", set))
		if len(policies) != 2 {
			t.Errorf("%s: there are %d policies", set, len(policies))
		}
		for _, p := range policies {
			hooks, deleted := p.Annotations["helm.sh/hook"], p.Annotations["helm.sh/hook-delete-policy"]
			if !slices.Contains(off, p.Name) {
				if hooks != "post-upgrade,post-rollback" || deleted != "before-hook-creation" {
					t.Errorf("%s: %s is made by %q and deleted by %q", set, p.Name, hooks, deleted)
				}
				continue
			}
			if hooks != "post-upgrade,post-rollback" || deleted != "before-hook-creation,hook-succeeded" {
				t.Errorf("%s: %s is replaced by %q and deleted by %q", set, p.Name, hooks, deleted)
			}
			about, err := metav1.LabelSelectorAsSelector(p.Spec.ClusterSelector)
			if err != nil || p.Spec.Accept != v1alpha1.AcceptNever || p.Spec.Automatic != nil ||
				about.Matches(labelset.Set{}) || about.Matches(labelset.Set{v1alpha1.LabelPeer: "x"}) {
				t.Errorf("%s: while %s is replaced it is %+v, %v", set, p.Name, p.Spec, err)
			}
		}
	}
}

// What Helm writes at an install is of kinds that are not the chart's own, as nothing says when the API
// server serves those. The agent writes the policies, and Helm does again at an upgrade.
func TestAnInstallWritesNoKindOfItsOwn(t *testing.T) {
	t.Parallel()
	const automatic = "--set=discovery.automatic.enabled=true,discovery.automatic.trustOnFirstUse=true,policy.nodeSelectorKeys=null"
	const served = "--api-versions=entente.dev/v1alpha1/PeeringPolicy"
	for name, tc := range map[string]struct {
		args  []string
		hooks string
		// agent is whether the agent writes the policies.
		agent bool
	}{
		"an install":                           {nil, "post-upgrade,post-rollback", true},
		"an install where the kinds are still": {[]string{served}, "post-upgrade,post-rollback", true},
		"an upgrade":                           {[]string{"--is-upgrade", served}, "post-upgrade,post-rollback", false},
		"an upgrade of what did not install in whole": {[]string{"--is-upgrade"}, "post-rollback", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := render(t, append([]string{automatic}, tc.args...)...)
			for _, o := range found {
				if o.GetObjectKind().GroupVersionKind().Group == v1alpha1.GroupVersion.Group && o.GetAnnotations()["helm.sh/hook"] != tc.hooks {
					t.Errorf("%s %s is written by %q, want %q", o.kind, o.GetName(), o.GetAnnotations()["helm.sh/hook"], tc.hooks)
				}
			}
			manifests := one[*corev1.ConfigMap](t, found, chartpolicies.ConfigMap).Data
			if !tc.agent {
				if len(manifests) > 0 {
					t.Errorf("the agent would write %v, too", manifests)
				}
				return
			}
			policies := all[*v1alpha1.PeeringPolicy](found)
			if len(policies) != 2 || len(manifests) != 2 {
				t.Fatalf("Helm writes %d policies, and the agent %d", len(policies), len(manifests))
			}
			for _, p := range policies {
				var first v1alpha1.PeeringPolicy
				if err := yaml.UnmarshalStrict([]byte(manifests[p.Name]), &first); err != nil {
					t.Fatal(err)
				}
				p.Annotations = nil
				if diff := cmp.Diff(p, &first); diff != "" {
					t.Errorf("the agent writes another %s (-helm +agent)\n%s", p.Name, diff)
				}
			}
		})
	}
	if data := one[*corev1.ConfigMap](t, render(t, "--set=policy.enabled=false"), chartpolicies.ConfigMap).Data; len(data) > 0 {
		t.Errorf("without policies the agent writes %v", data)
	}
}

// An API server that takes long to serve new kinds, as Helm sees it: it has none of the chart's while Helm
// installs. The agent writes the policies then, with its own rights, and an upgrade replaces them.
func TestInstallDoesNotWaitForItsOwnKindsOnARealAPIServer(t *testing.T) {
	needAPIServer(t)
	env := &envtest.Environment{}
	owner, err := env.Start()
	if err != nil {
		t.Fatalf("start API server: %v", err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stop API server: %v", err)
		}
	})
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, withoutOwnKinds(t, owner), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), helmPath(t), "install", "entente", chart, "--namespace", namespace, "--create-namespace", "--kubeconfig", path).CombinedOutput()
	if err != nil {
		t.Fatalf("helm install: %v\n%s", err, out)
	}
	agent, err := client.New(APIServer{Owner: owner}.As("entente-agent"), client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	policy := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "entente-default"}}
	waitFor(t, "the agent to write the policies", func() error { return chartpolicies.Write(t.Context(), agent, namespace) })
	if err := agent.Get(t.Context(), client.ObjectKeyFromObject(policy), policy); err != nil || policy.Spec.Accept != v1alpha1.AcceptAutomatic {
		t.Fatalf("the policy accepts %q, %v", policy.Spec.Accept, err)
	}
	if err := agent.Delete(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	if err := chartpolicies.Write(t.Context(), agent, namespace); err != nil {
		t.Fatal(err)
	}
	if err := agent.Get(t.Context(), client.ObjectKeyFromObject(policy), policy); !apierrors.IsNotFound(err) {
		t.Errorf("the agent wrote a policy that was deleted: %v", err)
	}
}

// withoutOwnKinds returns a kubeconfig for a proxy before an API server, which says that there is no group of
// the chart's.
func withoutOwnKinds(t *testing.T, server *rest.Config) []byte {
	t.Helper()
	target, err := url.Parse(server.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(server)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			if r.SetURL(target); r.Out.URL.Path == "/apis" { // not all groups with their kinds at once
				r.Out.Header.Set("Accept", "application/json")
				r.Out.Header.Del("Accept-Encoding")
			}
		},
		ModifyResponse: func(r *http.Response) error {
			if r.Request.URL.Path != "/apis" {
				return nil
			}
			var groups metav1.APIGroupList
			if err := json.NewDecoder(r.Body).Decode(&groups); err != nil {
				return err
			}
			groups.Groups = slices.DeleteFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == v1alpha1.GroupVersion.Group })
			text, err := json.Marshal(groups)
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
			r.Header.Set("Content-Length", strconv.Itoa(len(text)))
			return errors.Join(err, r.Body.Close())
		},
	}
	front := httptest.NewServer(proxy)
	t.Cleanup(front.Close)
	config, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"front": {Server: front.URL}}, Contexts: map[string]*clientcmdapi.Context{"front": {Cluster: "front"}},
		CurrentContext: "front",
	})
	if err != nil {
		t.Fatal(err)
	}
	return config
}

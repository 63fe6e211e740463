package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
)

// anID has the form of a cluster ID and belongs to no cluster.
const anID = "abcdefghijklmnopqrstuvwxyz234567"

func foreignCluster(name, id string, endpoints ...string) *v1alpha1.ForeignCluster {
	return &v1alpha1.ForeignCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.ForeignClusterSpec{ClusterID: id, Endpoints: endpoints},
	}
}

func offloadingOf(namespace string, change func(*v1alpha1.NamespaceOffloading)) *v1alpha1.NamespaceOffloading {
	o := &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.NamespaceOffloadingName}}
	if change != nil {
		change(o)
	}
	return o
}

func requestOf(name, peer string, change func(*v1alpha1.PeeringRequest)) *v1alpha1.PeeringRequest {
	s := &v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.PeeringRequestSpec{ForeignCluster: peer}}
	if change != nil {
		change(s)
	}
	return s
}

func contractWith(change func(*v1alpha1.Contract)) *v1alpha1.Contract {
	c := &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: "c-crd"}, Spec: v1alpha1.ContractSpec{
		ForeignCluster: "x", PeerID: anID, Role: v1alpha1.ContractConsumer, Revision: 1, RequestID: "r",
		Resources: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
		NotBefore: metav1.Now(), NotAfter: metav1.Now(), Network: v1alpha1.NetworkNone, PodSecurity: "baseline", Envelope: "{}",
	}}
	change(c)
	return c
}

// poolOf is a pool of the nodes with these labels.
func poolOf(name string, labels ...string) v1alpha1.NodePool {
	p := v1alpha1.NodePool{Name: name, NodeSelector: map[string]v1alpha1.LabelValue{}}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		p.NodeSelector[key] = v1alpha1.LabelValue(value)
	}
	return p
}

// tolerating is a policy with a pool that has these tolerations.
func tolerating(t ...v1alpha1.PoolToleration) *v1alpha1.PeeringPolicy {
	return policyWith(func(p *v1alpha1.PeeringPolicySpec) {
		pool := poolOf("a", "kind=x")
		pool.Tolerations = t
		p.Pools = []v1alpha1.NodePool{pool}
	})
}

func policyWith(change func(*v1alpha1.PeeringPolicySpec)) *v1alpha1.PeeringPolicy {
	p := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "zz-crd"}}
	change(&p.Spec)
	return p
}

func TestInvalidObjectsAreRefusedWithAReason(t *testing.T) {
	home := needLab(t).home
	namespace := newNamespace(t, home, "crd")
	percent := func(n int32) *int32 { return &n }
	// A policy holds some seconds after it was installed.
	if err := eventually.Is(t.Context(), later, "the guard of NamespaceOffloadings to be in force", func(ctx context.Context) error {
		if home.client.Create(ctx, offloadingOf("kube-system", nil), ctrlclient.DryRunAll) == nil {
			return errors.New("one in kube-system would be taken")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		object ctrlclient.Object
		// want is what the refusal says; empty takes the object.
		want string
	}{
		"a cluster ID is 32 characters of base32":  {object: foreignCluster("crd-a", "abc"), want: "spec.clusterID: Invalid value: \"abc\": spec.clusterID in body should match '^[a-z2-7]{32}$'"},
		"a cluster ID has no capitals":             {object: foreignCluster("crd-b", strings.ToUpper(anID)), want: "should match '^[a-z2-7]{32}$'"},
		"a cluster ID has no digits 0, 1, 8 and 9": {object: foreignCluster("crd-c", anID[:31]+"8"), want: "should match"},
		"eight endpoints are enough":               {object: foreignCluster("crd-d", anID, strings.Split("1:1,2:1,3:1,4:1,5:1,6:1,7:1,8:1,9:1", ",")...), want: "spec.endpoints: Too many: 9: must have at most 8 items"},
		"an endpoint is bounded":                   {object: foreignCluster("crd-e", anID, strings.Repeat("x", 262)), want: "Too long: may not be more than 261 bytes"},
		"a well formed foreign cluster is taken":   {object: foreignCluster("crd-f", anID, "peer.example:7443")},
		"a request names a peer or a selector":     {object: requestOf("crd-a", "", nil), want: "choose the provider either by foreignCluster or by clusterSelector"},
		"a request's network is Tunnel or None":    {object: requestOf("crd-b", "x", func(s *v1alpha1.PeeringRequest) { s.Spec.Network = "Wire" }), want: `spec.network: Unsupported value: "Wire": supported values: "Tunnel", "None"`},
		"a well formed request is taken":           {object: requestOf("crd-c", "nobody", func(s *v1alpha1.PeeringRequest) { s.Spec.Network = "None" })},
		"a namespace has one offloading":           {object: &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "mine"}}, want: "a namespace has one NamespaceOffloading, named offloading"},
		"a strategy is one of three":               {object: offloadingOf(namespace, func(o *v1alpha1.NamespaceOffloading) { o.Spec.PodStrategy = "Anywhere" }), want: `spec.podStrategy: Unsupported value: "Anywhere": supported values: "Local", "Remote", "LocalAndRemote"`},
		"a mapping is one of three":                {object: offloadingOf(namespace, func(o *v1alpha1.NamespaceOffloading) { o.Spec.NameMapping = "Other" }), want: `spec.nameMapping: Unsupported value: "Other": supported values: "Suffixed", "Same", "Chosen"`},
		"a chosen name is said":                    {object: offloadingOf(namespace, func(o *v1alpha1.NamespaceOffloading) { o.Spec.NameMapping = v1alpha1.MappingChosen }), want: "remoteName goes with nameMapping Chosen, and with no other"},
		"and only then":                            {object: offloadingOf(namespace, func(o *v1alpha1.NamespaceOffloading) { o.Spec.RemoteName = "rome" }), want: "remoteName goes with nameMapping Chosen, and with no other"},
		"it is a label": {object: offloadingOf(namespace, func(o *v1alpha1.NamespaceOffloading) {
			o.Spec.NameMapping, o.Spec.RemoteName = v1alpha1.MappingChosen, "rome.shop"
		}), want: "spec.remoteName in body should match"},
		"names that are given begin with something": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) { p.NamespaceNames = []string{"*"} }), want: "should match"},
		"and may end with anything":                 {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) { p.NamespaceNames = []string{"shop", "rome-*"} })},
		"the system's namespaces are not offloaded": {object: offloadingOf("kube-system", nil), want: "the namespaces of the system and of Entente are not offloaded"},
		"our own namespace is not offloaded":        {object: offloadingOf(systemNamespace, nil), want: "the namespaces of the system and of Entente are not offloaded"},
		"a well formed offloading is taken":         {object: offloadingOf(namespace, nil)},
		"two pools are apart": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) {
			p.Pools = []v1alpha1.NodePool{poolOf("a", "kind=x", "zone=1"), poolOf("b", "kind=y", "zone=1"), poolOf("c", "kind=z")}
		})},
		"no node is in two pools": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) {
			p.Pools = []v1alpha1.NodePool{poolOf("a", "kind=x"), poolOf("b", "kind=x", "zone=1")}
		}), want: "no node may be in two pools"},
		"a pool has nodes":         {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) { p.Pools = []v1alpha1.NodePool{poolOf("a")} }), want: "should have at least 1 properties"},
		"a pool's name is a label": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) { p.Pools = []v1alpha1.NodePool{poolOf("A", "kind=x")} }), want: "should match"},
		"a pool tolerates the taints of its nodes": {object: tolerating(
			v1alpha1.PoolToleration{Key: "nvidia.com/gpu", Operator: "Exists", Effect: "NoSchedule"}, v1alpha1.PoolToleration{Key: "dedicated", Value: "shared"},
			v1alpha1.PoolToleration{Key: "notentente.dev/x", Operator: "Exists"}, v1alpha1.PoolToleration{Key: "node-role.kubernetes.io/control-plane", Operator: "Exists"},
		)},
		"but not everything":                      {object: tolerating(v1alpha1.PoolToleration{Operator: "Exists"}), want: "a toleration without a key tolerates all taints, and pods would be passed on to another provider"},
		"nor virtual nodes":                       {object: tolerating(v1alpha1.PoolToleration{Key: v1alpha1.TaintVirtualNode, Operator: "Exists"}), want: "no pod of a consumer tolerates a taint of virtual nodes: it would be passed on to another provider"},
		"nor those that lose pods":                {object: tolerating(v1alpha1.PoolToleration{Key: v1alpha1.TaintLosingPods, Value: "true"}), want: "it would be passed on to another provider"},
		"nor what is below that domain":           {object: tolerating(v1alpha1.PoolToleration{Key: "peer.entente.dev/x"}), want: "it would be passed on to another provider"},
		"nor nodes that are not ready":            {object: tolerating(v1alpha1.PoolToleration{Key: corev1.TaintNodeNotReady, Operator: "Exists"}), want: "marks a node as unhealthy"},
		"nor those that a cloud stopped":          {object: tolerating(v1alpha1.PoolToleration{Key: "node.cloudprovider.kubernetes.io/shutdown"}), want: "marks a node as unhealthy"},
		"a toleration is of a taint":              {object: tolerating(v1alpha1.PoolToleration{Key: "a b"}), want: "that is not the key of a taint"},
		"with a domain before it, or none":        {object: tolerating(v1alpha1.PoolToleration{Key: "a..b/c"}), want: "that is not the key of a taint"},
		"of any value, or of one":                 {object: tolerating(v1alpha1.PoolToleration{Key: "a", Operator: "Exists", Value: "b"}), want: "with the operator Exists there is no value"},
		"of effects that there are":               {object: tolerating(v1alpha1.PoolToleration{Key: "a", Effect: "NoAdmit"}), want: `Unsupported value: "NoAdmit"`},
		"and there are at most eight":             {object: tolerating(slices.Repeat([]v1alpha1.PoolToleration{{Key: "a"}}, 9)...), want: "must have at most 8 items"},
		"a policy accepts automatically or never": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) { p.Accept = "Sometimes" }), want: `spec.accept: Unsupported value: "Sometimes": supported values: "Automatic", "AfterApproval", "Never"`},
		"a percentage is at most 100":             {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) { p.Limits.PercentOfFree = percent(101) }), want: "should be less than or equal to 100"},
		"a percentage is not negative":            {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) { p.Limits.PercentOfFree = percent(-1) }), want: "should be greater than or equal to 0"},
		"a level of Pod Security exists":          {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) { p.PodSecurity = "lax" }), want: `spec.podSecurity: Unsupported value: "lax"`},
		"a policy that peers says with whom":      {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) { p.Automatic = &v1alpha1.AutomaticPeering{} }), want: "choose whom to trust"},
		"a policy that peers selects no clusters": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) {
			p.Automatic, p.Names = &v1alpha1.AutomaticPeering{TrustOnFirstUse: true}, []string{"a"}
		}), want: "decides about the clusters that it peered with"},
		"first use needs no group": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) {
			p.Automatic = &v1alpha1.AutomaticPeering{TrustOnFirstUse: true, Group: &v1alpha1.PeeringGroup{Name: "a", SecretRef: v1alpha1.SecretKey{Name: "a"}}}
		}), want: "choose one of the two"},
		"a group is a DNS label": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) {
			p.Automatic = &v1alpha1.AutomaticPeering{Group: &v1alpha1.PeeringGroup{Name: "A b", SecretRef: v1alpha1.SecretKey{Name: "a"}}}
		}), want: "spec.automatic.group.name in body should match"},
		"clusters are found on LANs and in domains": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) {
			p.Automatic = &v1alpha1.AutomaticPeering{TrustOnFirstUse: true, Sources: []v1alpha1.Source{v1alpha1.SourceToken}}
		}), want: "sources are LAN and DNS"},
		"an amount has one form": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) {
			p.Automatic = &v1alpha1.AutomaticPeering{TrustOnFirstUse: true, PriceCeiling: &v1alpha1.Money{Currency: "EUR", Amount: "0.50"}}
		}), want: "the last of them not 0: 0.5, not 0.50"},
		"Services of the system are never exported": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) {
			p.Services = []v1alpha1.ServiceExports{{Namespace: "kube-system"}}
		}), want: "Services of Kubernetes' own namespaces (kube-*) are not exported"},
		"Services go by name or by label": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) {
			p.Services = []v1alpha1.ServiceExports{{Namespace: "a", Names: []string{"b"}, Selector: &metav1.LabelSelector{}}}
		}), want: "set names or selector, not both"},
		"Services are of a namespace": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) { p.Services = []v1alpha1.ServiceExports{{Namespace: "a b"}} }), want: "spec.services[0].namespace in body should match"},
		"a Service is named once": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) {
			p.Services = []v1alpha1.ServiceExports{{Namespace: "a", Names: []string{"b", "b"}}}
		}), want: `spec.services[0].names[1]: Duplicate value: "b"`},
		"well formed Services are taken": {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) {
			p.Services = []v1alpha1.ServiceExports{{Namespace: "a", Names: []string{"b"}}, {Namespace: "c", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"d": "e"}}}, {Namespace: "f"}}
		})},
		"a well formed policy is taken":        {object: policyWith(func(p *v1alpha1.PeeringPolicySpec) { p.Accept = v1alpha1.AcceptNever })},
		"a contract's role is one of two":      {object: contractWith(func(c *v1alpha1.Contract) { c.Spec.Role = "Broker" }), want: `spec.role: Unsupported value: "Broker": supported values: "Consumer", "Provider"`},
		"a contract's revisions begin with 1":  {object: contractWith(func(c *v1alpha1.Contract) { c.Spec.Revision = 0 }), want: "spec.revision in body should be greater than or equal to 1"},
		"a contract ends in one of three ways": {object: contractWith(func(c *v1alpha1.Contract) { c.Spec.Termination = "Soon" }), want: `spec.termination: Unsupported value: "Soon"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := home.client.Create(t.Context(), tc.object)
			if err == nil {
				t.Cleanup(func() { remove(t, home, tc.object) })
			}
			said(t, err, tc.want)
		})
	}
}

func TestImmutableFieldsAreImmutable(t *testing.T) {
	home := needLab(t).home
	namespace := newNamespace(t, home, "crd")
	for name, tc := range map[string]struct {
		object ctrlclient.Object
		change func(ctrlclient.Object)
		want   string
	}{
		"a cluster's ID": {
			object: foreignCluster("crd-x", anID),
			change: func(o ctrlclient.Object) { o.(*v1alpha1.ForeignCluster).Spec.ClusterID = "z" + anID[1:] },
			want:   "a cluster's ID never changes; create another ForeignCluster",
		},
		"a cluster's endpoints may": {
			object: foreignCluster("crd-y", anID),
			change: func(o ctrlclient.Object) { o.(*v1alpha1.ForeignCluster).Spec.Endpoints = []string{"192.0.2.1:7443"} },
		},
		"whom a request asks": {
			object: requestOf("crd-x", "nobody", nil),
			change: func(o ctrlclient.Object) { o.(*v1alpha1.PeeringRequest).Spec.ForeignCluster = "somebody" },
			want:   "foreignCluster never changes; create another PeeringRequest",
		},
		"which pool it asks for": {
			object: requestOf("crd-p", "nobody", nil),
			change: func(o ctrlclient.Object) { o.(*v1alpha1.PeeringRequest).Spec.Pool = "gpu" },
			want:   "pool never changes; create another PeeringRequest",
		},
		"what a namespace is called abroad": {
			object: offloadingOf(namespace, nil),
			change: func(o ctrlclient.Object) { o.(*v1alpha1.NamespaceOffloading).Spec.NameMapping = v1alpha1.MappingSame },
			want:   "nameMapping never changes; delete the NamespaceOffloading and create another",
		},
		"what was chosen": {
			object: offloadingOf(namespace, func(o *v1alpha1.NamespaceOffloading) {
				o.Spec.NameMapping, o.Spec.RemoteName = v1alpha1.MappingChosen, "rome"
			}),
			change: func(o ctrlclient.Object) { o.(*v1alpha1.NamespaceOffloading).Spec.RemoteName = "milan" },
			want:   "remoteName never changes; delete the NamespaceOffloading and create another",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := home.client.Create(t.Context(), tc.object); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { remove(t, home, tc.object) })
			// The agent writes too.
			err := eventually.Is(t.Context(), soon, "change it", func(ctx context.Context) error {
				if err := home.client.Get(ctx, ctrlclient.ObjectKeyFromObject(tc.object), tc.object); err != nil {
					return eventually.Permanent(err)
				}
				tc.change(tc.object)
				err := home.client.Update(ctx, tc.object)
				if apierrors.IsConflict(err) {
					return err
				}
				return eventually.Permanent(err)
			})
			said(t, err, tc.want)
		})
	}
}

// said checks that err is an API server's refusal that says want, or none if that
// is empty.
func said(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("it was refused: %v", err)
	case want != "" && err == nil:
		t.Error("it was taken")
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("the refusal is\n%v\nand does not say\n%s", err, want)
	}
}

func TestKubectlGetPrintsTheUsefulColumns(t *testing.T) {
	home := needLab(t).home
	fc := foreignCluster("crd-table", anID)
	if err := home.client.Create(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, home, fc) })
	// The agent writes too, so nothing is said of the version.
	role := ctrlclient.RawPatch("application/merge-patch+json", []byte(`{"status":{"role":"Provider"}}`))
	if err := home.client.Status().Patch(t.Context(), fc, role); err != nil {
		t.Fatal(err)
	}
	for resources, want := range map[string][]string{
		"foreignclusters":      {"NAME", "ROLE", "CONNECTED", "NETWORK", "GRANTED", "USED", "AGE"},
		"peeringrequests":      {"NAME", "REQUESTED", "PROVIDER", "ACCEPTED", "REASON", "NODE", "AGE"},
		"contracts":            {"NAME", "PEER", "SIDE", "PHASE", "CPU-GRANTED", "MEMORY-GRANTED", "PODS-USED", "UNTIL", "AGE"},
		"namespaceoffloadings": {"NAME", "STRATEGY", "MAPPING", "STATE", "AGE"},
		"peeringpolicies":      {"NAME", "ACCEPT", "PERCENT", "CPU", "MEMORY", "DURATION", "VALID", "AGE"},
	} {
		table, err := tableOf(t.Context(), home, resources)
		if err != nil {
			t.Fatal(err)
		}
		var columns []string
		for _, c := range table.ColumnDefinitions {
			if c.Priority == 0 {
				columns = append(columns, strings.ToUpper(c.Name))
			}
		}
		if diff := cmp.Diff(want, columns); diff != "" {
			t.Errorf("kubectl get %s (-want +got):\n%s", resources, diff)
		}
		if resources != "foreignclusters" {
			continue
		}
		found := false
		for _, row := range table.Rows {
			if fmt.Sprint(row.Cells[0]) == fc.Name {
				found = true
				if role := fmt.Sprint(row.Cells[1]); role != "Provider" && role != "None" { // the agent may have looked
					t.Errorf("its role is shown as %q", role)
				}
			}
		}
		if !found {
			t.Error("the cluster is not in the table")
		}
	}
}

// tableOf asks for a table as kubectl does.
func tableOf(ctx context.Context, c *cluster, resources string) (*metav1.Table, error) {
	config := rest.CopyConfig(c.config)
	config.GroupVersion, config.APIPath = &v1alpha1.GroupVersion, "/apis"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	rc, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	b, err := rc.Get().Resource(resources).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var table metav1.Table
	return &table, json.Unmarshal(b, &table)
}

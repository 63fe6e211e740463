package charttest

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// cluster is an API server of its own with the chart in it.
type cluster struct {
	admin  client.Client
	config *rest.Config
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	NeedAPIServer(t)
	env := &envtest.Environment{}
	config, err := env.Start()
	if err != nil {
		t.Fatalf("start API server: %v", err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stop API server: %v", err)
		}
	})
	config.QPS = -1
	Install(t, env.KubeConfig)
	c := cluster{config: config}
	c.admin = c.as(t, "", nil)
	return c
}

// as returns a client that is one of our ServiceAccounts; with no name, the
// admin.
func (c cluster) as(t *testing.T, account string, extra map[string][]string) client.Client {
	t.Helper()
	config := rest.CopyConfig(c.config)
	if account != "" {
		config.Impersonate = rest.ImpersonationConfig{
			UserName: "system:serviceaccount:" + namespace + ":" + account,
			Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
			Extra:    extra,
		}
	}
	cl, err := client.New(config, client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	return cl
}

// name returns a name that no earlier run of the test used.
func name(prefix string) string { return fmt.Sprintf("%s-%x", prefix, time.Now().UnixNano()) }

func (c cluster) create(t *testing.T, objs ...client.Object) {
	t.Helper()
	for _, o := range objs {
		if err := c.admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.remove(t, o) })
	}
}

// remove deletes an object that a test may have deleted already.
func (c cluster) remove(t *testing.T, o client.Object) {
	t.Helper()
	// The test's own context has ended by now.
	err := c.admin.Delete(context.WithoutCancel(t.Context()), o, client.GracePeriodSeconds(0))
	if client.IgnoreNotFound(err) != nil {
		t.Error(err)
	}
}

func labels(kv ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i+1 < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}

func newNamespace(l map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name("ns"), Labels: l}}
}

func newNode(l map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name("node"), Labels: l}}
}

func newPod(namespace string, spec corev1.PodSpec) *corev1.Pod {
	spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
	spec.ServiceAccountName = ""
	spec.AutomountServiceAccountToken = new(bool)
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name("pod"), Namespace: namespace}, Spec: spec}
}

const virtualNode = "entente.dev/virtual-node"

// TestOnARealAPIServer installs the chart and tries what it allows and what it does.
func TestOnARealAPIServer(t *testing.T) {
	c := newCluster(t)
	t.Run("agent's guard", c.testGuard)
	t.Run("certificates", c.testCertificates)
	t.Run("fabric's guard", c.testFabric)
	t.Run("placement", c.testPlacement)
}

func (c cluster) testGuard(t *testing.T) {
	agent := c.as(t, "entente-agent", nil)
	const enforce = "pod-security.kubernetes.io/enforce"
	ours := labels(v1alpha1.LabelManaged, v1alpha1.Manager)
	lent := labels(v1alpha1.LabelManaged, v1alpha1.Manager, enforce, "baseline")
	var (
		realNode  = newNode(nil)
		virtual   = newNode(labels(virtualNode, "true"))
		foreign   = newNamespace(labels("team", "a"))
		offloaded = newNamespace(labels(v1alpha1.LabelOffloading, "enabled"))
		provided  = newNamespace(lent)
	)
	c.create(t, realNode, virtual, foreign, offloaded, provided)
	var (
		ordinary    = newPod(foreign.Name, corev1.PodSpec{NodeName: realNode.Name, Tolerations: []corev1.Toleration{{Key: "x", Operator: "Exists"}}})
		onVirtual   = newPod(foreign.Name, corev1.PodSpec{NodeName: virtual.Name, Tolerations: []corev1.Toleration{{Key: virtualNode, Operator: "Exists"}}})
		daemon      = newPod(foreign.Name, corev1.PodSpec{NodeName: virtual.Name, Tolerations: []corev1.Toleration{{Operator: "Exists"}}})
		waiting     = newPod(foreign.Name, corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: "Exists"}}})
		ofAConsumer = newPod(provided.Name, corev1.PodSpec{NodeName: realNode.Name})
	)
	c.create(t, ordinary, onVirtual, daemon, waiting, ofAConsumer)
	binding := func(ns, role, account string, l map[string]string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name("rb"), Namespace: ns, Labels: l},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: account, Namespace: namespace}},
		}
	}
	otherBinder := binding(foreign.Name, "view", "default", nil)
	c.create(t, otherBinder)
	label := func(o client.Object, key, value string) func() error {
		return func() error {
			patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
			return agent.Patch(t.Context(), o.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json", []byte(patch)))
		}
	}
	merge := func(o client.Object, patch string) func() error {
		return func() error {
			return agent.Patch(t.Context(), o.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json", []byte(patch)))
		}
	}
	create := func(o client.Object) func() error {
		return func() error {
			if err := agent.Create(t.Context(), o); err != nil {
				return err
			}
			return c.admin.Delete(t.Context(), o)
		}
	}
	remove := func(o client.Object, opts ...client.DeleteOption) func() error {
		return func() error { return agent.Delete(t.Context(), o, opts...) }
	}
	named := func(n string) *corev1.Namespace { return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n}} }
	now := client.GracePeriodSeconds(0)

	type try struct {
		name    string
		do      func() error
		allowed bool
	}
	tries := []try{
		{"make a virtual node", create(newNode(labels(virtualNode, "true"))), true},
		{"make an ordinary node", create(newNode(nil)), false},
		{"make an ordinary node a virtual one", label(realNode, virtualNode, "true"), false},
		{"cordon an ordinary node", merge(realNode, `{"spec":{"unschedulable":true}}`), false},
		{"cordon a virtual node", merge(virtual, `{"spec":{"unschedulable":true}}`), true},
		{"make a virtual node an ordinary one", merge(virtual, `{"metadata":{"labels":{"entente.dev/virtual-node":null}}}`), false},
		{"delete an ordinary node", remove(realNode), false},

		{"make a namespace for a consumer", create(newNamespace(lent)), true},
		{"make a namespace for privileged pods", create(newNamespace(labels(v1alpha1.LabelManaged, v1alpha1.Manager, enforce, "privileged"))), false},
		{"make a namespace without Pod Security", create(newNamespace(ours)), false},
		{"weaken the Pod Security of a namespace of its own", label(provided, enforce, "privileged"), false},
		{"make a namespace that is not marked", create(newNamespace(nil)), false},
		{"delete a foreign namespace", remove(foreign), false},
		{"say of a namespace that it is offloaded", label(foreign, v1alpha1.LabelOffloading, "enabled"), true},
		{"take that back", merge(foreign, `{"metadata":{"labels":{"entente.dev/offloading":null}}}`), true},
		{"change another label", label(foreign, "team", "b"), false},
		{"weaken the Pod Security of a namespace", label(foreign, "pod-security.kubernetes.io/enforce", "privileged"), false},
		{"annotate a namespace", merge(foreign, `{"metadata":{"annotations":{"a":"b"}}}`), false},
		{"hold a namespace by a finalizer", merge(foreign, `{"metadata":{"finalizers":["entente.dev/finalizer"]}}`), false},
		{"make a namespace its own", label(foreign, v1alpha1.LabelManaged, v1alpha1.Manager), false},
		{"give up a namespace of its own", label(provided, v1alpha1.LabelManaged, "other"), false},
		{"offload kube-system", label(named("kube-system"), v1alpha1.LabelOffloading, "enabled"), false},
		{"offload its own namespace", label(named(namespace), v1alpha1.LabelOffloading, "enabled"), false},

		{"take the provider's rights in a namespace for a consumer", create(binding(provided.Name, "entente-provider-namespace", "entente-agent", ours)), true},
		{"take the provider's rights elsewhere", create(binding(foreign.Name, "entente-provider-namespace", "entente-agent", ours)), false},
		{"take the consumer's rights in an offloaded namespace", create(binding(offloaded.Name, "entente-consumer-namespace", "entente-agent", ours)), true},
		{"take the consumer's rights in kube-system", create(binding("kube-system", "entente-consumer-namespace", "entente-agent", ours)), false},
		{"take the rights of a cluster's admin", create(binding(provided.Name, "cluster-admin", "entente-agent", ours)), false},
		{"give rights to another", create(binding(provided.Name, "entente-provider-namespace", "default", ours)), false},
		{"take rights without a mark", create(binding(provided.Name, "entente-provider-namespace", "entente-agent", nil)), false},
		{"delete a foreign role binding", remove(otherBinder), false},

		{"delete a pod of an ordinary node", remove(ordinary, now), false},
		{"delete a pod that waits for a node", remove(waiting, now), false},
		{"delete a pod of a virtual node", remove(onVirtual, now), true},
		{"delete a pod of a DaemonSet on a virtual node", remove(daemon, now), true},
		{"read a pod's Secrets in a foreign namespace", func() error {
			return agent.List(t.Context(), &corev1.SecretList{}, client.InNamespace(foreign.Name))
		}, false},
		{"make a pod in a foreign namespace", create(newPod(foreign.Name, corev1.PodSpec{})), false},
		{"change its own Deployment", merge(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "entente-agent"}}, `{"spec":{"replicas":2}}`), false},
		{"delete a namespace for a consumer", remove(provided), true},
	}
	// Policies that were just installed take a moment to be in force.
	waitFor(t, "the guard", func() error {
		if err := create(newNode(nil))(); !apierrors.IsForbidden(err) {
			return fmt.Errorf("an ordinary node was not forbidden: %w", cmp.Or(err, errors.New("no error")))
		}
		return nil
	})
	for _, try := range tries {
		t.Run(try.name, func(t *testing.T) {
			err := try.do()
			switch {
			case try.allowed && err != nil:
				t.Errorf("refused: %v", err)
			case !try.allowed && err == nil:
				t.Error("allowed")
			case !try.allowed && !apierrors.IsForbidden(err):
				t.Errorf("got %v, want it forbidden", err)
			}
		})
	}
}

func (c cluster) testCertificates(t *testing.T) {
	request := func(signer string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name("csr")},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: nodeRequest(t), SignerName: signer,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
			},
		}
	}
	agent := c.as(t, "entente-agent", nil)
	config := rest.CopyConfig(c.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":entente-agent", Groups: []string{"system:authenticated"}}
	approver, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	approve := func(csr *certificatesv1.CertificateSigningRequest) error {
		csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Own", Message: "own",
		}}
		_, err := approver.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), csr.Name, csr, metav1.UpdateOptions{})
		return err
	}
	own := request(certificatesv1.KubeletServingSignerName)
	if err := agent.Create(t.Context(), own); err != nil {
		t.Fatalf("the agent may not ask for a serving certificate: %v", err)
	}
	if err := approve(own); err != nil {
		t.Errorf("the agent may not approve its own: %v", err)
	}
	if err := agent.Create(t.Context(), request(certificatesv1.KubeAPIServerClientSignerName)); !apierrors.IsForbidden(err) {
		t.Errorf("a client certificate: got %v, want it forbidden", err)
	}
	other := request(certificatesv1.KubeletServingSignerName)
	c.create(t, other)
	if err := approve(other); !apierrors.IsForbidden(err) {
		t.Errorf("approve another's: got %v, want it forbidden", err)
	}
}

// nodeRequest is a signing request as a kubelet makes it.
func nodeRequest(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:     pkix.Name{CommonName: "system:node:virtual", Organization: []string{"system:nodes"}},
		IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func (c cluster) testFabric(t *testing.T) {
	const claim = "authentication.kubernetes.io/node-name"
	mine := &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: name("fn")}}
	fabric := c.as(t, "entente-fabric", map[string][]string{claim: {mine.Name}})
	if err := fabric.Create(t.Context(), mine); err != nil {
		t.Fatalf("its own FabricNode: %v", err)
	}
	t.Cleanup(func() { c.remove(t, mine) })
	mine.Status.Backend = "kernel"
	if err := fabric.Status().Update(t.Context(), mine); err != nil {
		t.Errorf("its own status: %v", err)
	}
	for who, cl := range map[string]client.Client{
		"the fabric of another node":        c.as(t, "entente-fabric", map[string][]string{claim: {"elsewhere"}}),
		"a token that names no node":        c.as(t, "entente-fabric", nil),
		"a token that names it and another": c.as(t, "entente-fabric", map[string][]string{claim: {mine.Name, "elsewhere"}}),
	} {
		forged := mine.DeepCopy()
		forged.Status.Backend = "forged"
		if err := cl.Status().Update(t.Context(), forged); !apierrors.IsForbidden(err) {
			t.Errorf("%s writes the status: got %v, want it forbidden", who, err)
		}
		if err := cl.Delete(t.Context(), mine); !apierrors.IsForbidden(err) {
			t.Errorf("%s deletes it: got %v, want it forbidden", who, err)
		}
	}
	secret := func(n string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: n}}
	}
	c.create(t, secret("entente-fabric"), secret(name("other")))
	list := &corev1.SecretList{}
	if err := fabric.List(t.Context(), list, client.InNamespace(namespace), client.MatchingFields{"metadata.name": "entente-fabric"}); err != nil || len(list.Items) != 1 {
		t.Errorf("its Secret, as a watch lists it: %d, %v", len(list.Items), err)
	}
	if err := fabric.List(t.Context(), list, client.InNamespace(namespace)); !apierrors.IsForbidden(err) {
		t.Errorf("all Secrets: got %v, want it forbidden", err)
	}
}

func (c cluster) testPlacement(t *testing.T) {
	ours := corev1.Toleration{Key: virtualNode, Operator: "Exists", Effect: "NoSchedule"}
	other := corev1.Toleration{Key: "x", Operator: "Exists"}
	remote := corev1.NodeSelectorRequirement{Key: virtualNode, Operator: "In", Values: []string{"true"}}
	zone := corev1.NodeSelectorRequirement{Key: "zone", Operator: "In", Values: []string{"a"}}
	field := corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: "In", Values: []string{"n"}}
	term := func(expressions ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: expressions}
	}
	required := func(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}
	}
	apart := &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: labels("a", "b")},
	}}}
	prefer := []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: term(zone)}}
	withRemote := func(a *corev1.Affinity) *corev1.Affinity {
		a.NodeAffinity = cmp.Or(a.NodeAffinity, &corev1.NodeAffinity{})
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = required(term(remote)).NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		return a
	}
	type placed struct {
		Tolerations []corev1.Toleration
		Affinity    *corev1.Affinity
	}
	for title, row := range map[string]struct {
		spec        corev1.PodSpec
		owner       string
		untouched   bool
		tolerations []corev1.Toleration // with Remote or LocalAndRemote
		affinity    *corev1.Affinity    // with Remote
	}{
		"a pod without wishes": {
			tolerations: []corev1.Toleration{ours}, affinity: required(term(remote)),
		},
		"a pod that tolerates something else": {
			spec:        corev1.PodSpec{Tolerations: []corev1.Toleration{other}},
			tolerations: []corev1.Toleration{other, ours}, affinity: required(term(remote)),
		},
		"a pod that tolerates virtual nodes": {
			spec:        corev1.PodSpec{Tolerations: []corev1.Toleration{ours}},
			tolerations: []corev1.Toleration{ours}, affinity: required(term(remote)),
		},
		"a pod that keeps away from others": {
			spec:        corev1.PodSpec{Affinity: &corev1.Affinity{PodAntiAffinity: apart}},
			tolerations: []corev1.Toleration{ours}, affinity: withRemote(&corev1.Affinity{PodAntiAffinity: apart}),
		},
		"a pod that prefers nodes": {
			spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: prefer,
			}}},
			tolerations: []corev1.Toleration{ours},
			affinity: withRemote(&corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: prefer,
			}}),
		},
		"a pod with alternatives, one of which matches nothing": {
			spec:        corev1.PodSpec{Affinity: required(term(zone), corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{field}}, corev1.NodeSelectorTerm{})},
			tolerations: []corev1.Toleration{ours},
			affinity: required(term(zone, remote),
				corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{field}, MatchExpressions: []corev1.NodeSelectorRequirement{remote}},
				corev1.NodeSelectorTerm{}),
		},
		"a pod that says it already": {
			spec:        corev1.PodSpec{Affinity: required(term(remote, zone))},
			tolerations: []corev1.Toleration{ours}, affinity: required(term(remote, zone)),
		},
		"a pod that has a node": {spec: corev1.PodSpec{NodeName: "n"}, untouched: true},
		"a pod of a DaemonSet":  {owner: "DaemonSet", untouched: true},
		"a pod of a ReplicaSet": {owner: "ReplicaSet", tolerations: []corev1.Toleration{ours}, affinity: required(term(remote))},
	} {
		for _, strategy := range []v1alpha1.PodStrategy{v1alpha1.StrategyLocal, v1alpha1.StrategyRemote, v1alpha1.StrategyLocalAndRemote} {
			t.Run(title+", "+string(strategy), func(t *testing.T) {
				want := placed{Tolerations: row.spec.Tolerations, Affinity: row.spec.Affinity}
				if !row.untouched && strategy != v1alpha1.StrategyLocal {
					want.Tolerations = row.tolerations
				}
				if !row.untouched && strategy == v1alpha1.StrategyRemote {
					want.Affinity = row.affinity
				}
				pod := newPod(c.offloaded(t, strategy), *row.spec.DeepCopy())
				if row.owner != "" {
					pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: row.owner, Name: "o", UID: "u", Controller: new(true)}}
				}
				got := placed{}
				for _, tol := range c.admit(t, pod).Spec.Tolerations {
					if !strings.HasPrefix(tol.Key, "node.kubernetes.io/") { // the API server's own
						got.Tolerations = append(got.Tolerations, tol)
					}
				}
				got.Affinity = pod.Spec.Affinity
				if diff := gocmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
	t.Run("kube-system", func(t *testing.T) {
		err := c.admin.Create(t.Context(), &v1alpha1.NamespaceOffloading{
			ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NamespaceOffloadingName, Namespace: metav1.NamespaceSystem},
			Spec:       v1alpha1.NamespaceOffloadingSpec{PodStrategy: v1alpha1.StrategyRemote},
		}, client.DryRunAll)
		if !apierrors.IsForbidden(err) {
			t.Errorf("offload kube-system: got %v, want it forbidden", err)
		}
	})
	t.Run("a namespace that was not offloaded", func(t *testing.T) {
		ns := newNamespace(nil)
		c.create(t, ns)
		if got := c.admit(t, newPod(ns.Name, corev1.PodSpec{})).Spec; got.Affinity != nil || len(got.Tolerations) > 2 {
			t.Errorf("changed: %v %v", got.Tolerations, got.Affinity)
		}
	})
	t.Run("a namespace that has the label only", func(t *testing.T) {
		ns := newNamespace(labels(v1alpha1.LabelOffloading, "enabled"))
		c.create(t, ns)
		if got := c.admit(t, newPod(ns.Name, corev1.PodSpec{})).Spec; got.Affinity != nil || len(got.Tolerations) > 2 {
			t.Errorf("changed: %v %v", got.Tolerations, got.Affinity)
		}
	})
}

// admit sends a pod through admission and does not keep it.
func (c cluster) admit(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	if err := c.admin.Create(t.Context(), pod, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	return pod
}

// offloaded returns a namespace with a NamespaceOffloading that is in force.
func (c cluster) offloaded(t *testing.T, strategy v1alpha1.PodStrategy) string {
	t.Helper()
	ns := newNamespace(labels(v1alpha1.LabelOffloading, "enabled"))
	c.create(t, ns)
	c.create(t, &v1alpha1.NamespaceOffloading{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NamespaceOffloadingName, Namespace: ns.Name},
		Spec:       v1alpha1.NamespaceOffloadingSpec{PodStrategy: strategy},
	})
	if strategy != v1alpha1.StrategyLocal {
		waitFor(t, "the placement policy", func() error {
			for _, tol := range c.admit(t, newPod(ns.Name, corev1.PodSpec{})).Spec.Tolerations {
				if tol.Key == virtualNode {
					return nil
				}
			}
			return fmt.Errorf("a pod of %s got no toleration", ns.Name)
		})
	}
	return ns.Name
}

// waitFor tries until it succeeds.
func waitFor(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("wait for %s: %v", what, err)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

package charttest

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	gocmp "github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	labelset "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/namespaces"
	"github.com/entente-dev/entente/internal/waittest"
)

// cluster is an API server of its own with the chart in it.
type cluster struct {
	admin  client.Client
	config *rest.Config
	// kubeconfig is a file by which kubectl and helm reach it.
	kubeconfig string
	// upgrade upgrades the chart with helm's arguments.
	upgrade func(args ...string) error
	// rollback takes back the last upgrade.
	rollback func() error
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	return clusterOf(t, StartAPIServer(t))
}

func clusterOf(t *testing.T, server APIServer) cluster {
	t.Helper()
	ctrl.SetLogger(logr.Discard()) // otherwise it logs a stack trace that no logger was set
	path := filepath.Join(t.TempDir(), "kubeconfig")
	c := cluster{config: server.Owner, kubeconfig: path, upgrade: server.Upgrade}
	if err := os.WriteFile(path, server.KubeConfig, 0o600); err != nil {
		t.Fatal(err)
	}
	c.rollback = func() error {
		out, err := exec.CommandContext(t.Context(), helmPath(t), "rollback", "entente", "--namespace", namespace, "--kubeconfig", path).CombinedOutput()
		if err != nil {
			return fmt.Errorf("helm rollback: %w\n%s", err, out)
		}
		return nil
	}
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

func newVirtualNode() *corev1.Node {
	n := newNode(labels(virtualNode, "true"))
	n.Name += v1alpha1.VirtualNodeSuffix
	return n
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
	t.Run("agent's Services", c.testServices)
	t.Run("fabric's guard", c.testFabric)
	t.Run("placement", c.testPlacement)
	t.Run("placement by clusterSelector", c.testSelector)
	t.Run("the webhook in place of the policy", c.testWebhook)
	t.Run("pods that cannot cross", c.testCannotCross)
	t.Run("pods that are handed back", c.testHandBack)
	t.Run("pods with claims", c.testClaims)
	t.Run("images that a provider allows", c.testAllowedImages)
	t.Run("volumes", c.testVolumes)
	t.Run("a namespace that is no longer offloaded", c.testUnoffload)
	t.Run("names of our kinds", c.testNames)
	t.Run("dry runs of a PeeringRequest", c.testDryRun)
	t.Run("external hosts", c.testExternalHosts)
	t.Run("what no agent could decode", c.testUndecodable)
	// These upgrade the chart with other values.
	t.Run("policies that are off", c.testPolicies)
	t.Run("certificates", c.testCertificates)
	t.Run("DaemonSets", c.testDaemonSets)
	t.Run("agent's endpoints", c.testEndpoints)
}

func (c cluster) testGuard(t *testing.T) {
	agent := c.as(t, "entente-agent", nil)
	const enforce = "pod-security.kubernetes.io/enforce"
	ours := labels(v1alpha1.LabelManaged, v1alpha1.Manager)
	consumers := labels(v1alpha1.LabelManaged, v1alpha1.Manager, enforce, "baseline")
	var (
		realNode  = newNode(nil)
		virtual   = newVirtualNode()
		foreign   = newNamespace(labels("team", "a"))
		offloaded = newNamespace(labels(v1alpha1.LabelOffloading, "enabled"))
		provided  = newNamespace(consumers)
	)
	c.create(t, realNode, virtual, foreign, offloaded, provided)
	var (
		ordinary    = newPod(foreign.Name, corev1.PodSpec{NodeName: realNode.Name, Tolerations: []corev1.Toleration{{Key: "x", Operator: "Exists"}}})
		onVirtual   = newPod(foreign.Name, corev1.PodSpec{NodeName: virtual.Name, Tolerations: []corev1.Toleration{{Key: virtualNode, Operator: "Exists"}}})
		daemon      = newPod(foreign.Name, corev1.PodSpec{NodeName: virtual.Name, Tolerations: []corev1.Toleration{{Operator: "Exists"}}})
		everywhere  = newPod(foreign.Name, corev1.PodSpec{NodeName: realNode.Name, Tolerations: []corev1.Toleration{{Operator: "Exists"}}})
		placedHome  = newPod(offloaded.Name, corev1.PodSpec{NodeName: realNode.Name, Tolerations: []corev1.Toleration{{Key: virtualNode, Operator: "Exists"}}})
		byHand      = newPod(foreign.Name, corev1.PodSpec{NodeName: virtual.Name})
		waiting     = newPod(foreign.Name, corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: "Exists"}}})
		ofAConsumer = newPod(provided.Name, corev1.PodSpec{NodeName: realNode.Name})
		ofAnAgent   = newPod(namespace, corev1.PodSpec{NodeName: realNode.Name})
		ofAFabric   = newPod(namespace, corev1.PodSpec{NodeName: realNode.Name})
	)
	ofAnAgent.Spec.ServiceAccountName, ofAFabric.Spec.ServiceAccountName = "entente-agent", "entente-fabric"
	ofAnAgent.Labels = labels("app.kubernetes.io/component", "agent")
	placedHome.Spec.ServiceAccountName = "abroad"
	c.create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: offloaded.Name, Name: "abroad"}})
	c.create(t, ordinary, everywhere, placedHome, byHand, onVirtual, daemon, waiting, ofAConsumer, ofAnAgent, ofAFabric)
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
	status := func(o client.Object) func() error {
		return func() error {
			return agent.Status().Patch(t.Context(), o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`)))
		}
	}
	// An Eviction does not show a policy on which node its pod is.
	evict := func(pod *corev1.Pod) func() error {
		return func() error {
			return agent.SubResource("eviction").Create(t.Context(), pod.DeepCopy(), &policyv1.Eviction{}, client.DryRunAll)
		}
	}
	evictBound := func(pod *corev1.Pod) func() error {
		return func() error {
			bound := binding(pod.Namespace, "entente-consumer-namespace", "entente-agent", ours)
			if err := agent.Create(t.Context(), bound); err != nil {
				return err
			}
			defer c.remove(t, bound)
			var err error
			waittest.Soon(func() bool { // a binding takes a moment to be in force
				err = evict(pod)()
				return !apierrors.IsForbidden(err)
			})
			return err
		}
	}
	token := func(of *corev1.Pod, seconds int64) func() error {
		return func() error {
			request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
			if of != nil {
				request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: of.Name, UID: of.UID}
			}
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: offloaded.Name, Name: "abroad"}}
			return agent.SubResource("token").Create(t.Context(), account, request)
		}
	}
	// bound does something with the right to ask for tokens.
	bound := func(do func() error) func() error {
		return func() error {
			b := binding(offloaded.Name, "entente-home-api-namespace", "entente-agent", ours)
			if err := agent.Create(t.Context(), b); err != nil {
				return err
			}
			defer c.remove(t, b)
			var err error
			waittest.Soon(func() bool { // a binding takes a moment to be in force; the guard reports what it forbids
				err = do()
				return !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "Entente's agent may ask only for tokens")
			})
			return err
		}
	}
	named := func(n string) *corev1.Namespace { return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n}} }
	now := client.GracePeriodSeconds(0)

	type try struct {
		name    string
		do      func() error
		allowed bool
	}
	tries := []try{
		{"make a virtual node", create(newVirtualNode()), true},
		{"make a virtual node that is named as real ones are", create(newNode(labels(virtualNode, "true"))), false},
		{"make an ordinary node", create(newNode(nil)), false},
		{"make an ordinary node a virtual one", label(realNode, virtualNode, "true"), false},
		{"cordon an ordinary node", merge(realNode, `{"spec":{"unschedulable":true}}`), false},
		{"cordon a virtual node", merge(virtual, `{"spec":{"unschedulable":true}}`), true},
		{"make a virtual node an ordinary one", merge(virtual, `{"metadata":{"labels":{"entente.dev/virtual-node":null}}}`), false},
		{"delete an ordinary node", remove(realNode), false},

		{"make a namespace for a consumer", create(newNamespace(consumers)), true},
		{"make a namespace for privileged pods", create(newNamespace(labels(v1alpha1.LabelManaged, v1alpha1.Manager, enforce, "privileged"))), false},
		{"make a namespace without Pod Security", create(newNamespace(ours)), false},
		{"weaken the Pod Security of a namespace of its own", label(provided, enforce, "privileged"), false},
		{"make a namespace without a label", create(newNamespace(nil)), false},
		{"delete a foreign namespace", remove(foreign), false},
		{"label a namespace as offloaded", label(foreign, v1alpha1.LabelOffloading, "enabled"), true},
		{"take that back", merge(foreign, `{"metadata":{"labels":{"entente.dev/offloading":null}}}`), true},
		{"change another label", label(foreign, "team", "b"), false},
		{"weaken the Pod Security of a namespace", label(foreign, "pod-security.kubernetes.io/enforce", "privileged"), false},
		{"annotate a namespace", merge(foreign, `{"metadata":{"annotations":{"a":"b"}}}`), false},
		{"keep a namespace by a finalizer", merge(foreign, `{"metadata":{"finalizers":["entente.dev/finalizer"]}}`), false},
		{"make a namespace its own", label(foreign, v1alpha1.LabelManaged, v1alpha1.Manager), false},
		{"release a namespace of its own", label(provided, v1alpha1.LabelManaged, "other"), false},
		{"offload kube-system", label(named("kube-system"), v1alpha1.LabelOffloading, "enabled"), false},
		{"offload its own namespace", label(named(namespace), v1alpha1.LabelOffloading, "enabled"), false},

		{"take the provider's rights in a namespace for a consumer", create(binding(provided.Name, "entente-provider-namespace", "entente-agent", ours)), true},
		{"take the provider's rights elsewhere", create(binding(foreign.Name, "entente-provider-namespace", "entente-agent", ours)), false},
		{"take the consumer's rights in an offloaded namespace", create(binding(offloaded.Name, "entente-consumer-namespace", "entente-agent", ours)), true},
		{"take the consumer's rights in kube-system", create(binding("kube-system", "entente-consumer-namespace", "entente-agent", ours)), false},
		{"take the right to tokens in an offloaded namespace", create(binding(offloaded.Name, "entente-home-api-namespace", "entente-agent", ours)), true},
		{"take the right to tokens in kube-system", create(binding("kube-system", "entente-home-api-namespace", "entente-agent", ours)), false},
		{"take the right to tokens in its own namespace", create(binding(namespace, "entente-home-api-namespace", "entente-agent", ours)), false},
		{"ask for a token where it has no right to", token(placedHome, 600), false},
		{"ask for a token of a pod", bound(token(placedHome, 600)), true},
		{"ask for a token that lasts", bound(token(placedHome, 3600)), false},
		{"ask for a token that is not bound to a pod", bound(token(nil, 600)), false},
		{"take the rights of a cluster's admin", create(binding(provided.Name, "cluster-admin", "entente-agent", ours)), false},
		{"grant rights to another", create(binding(provided.Name, "entente-provider-namespace", "default", ours)), false},
		{"take rights without a label", create(binding(provided.Name, "entente-provider-namespace", "entente-agent", nil)), false},
		{"delete a foreign role binding", remove(otherBinder), false},

		{"delete a pod of an ordinary node", remove(ordinary, now), false},
		{"delete a pod of a real node that tolerates everything", remove(everywhere, now), false},
		{"write the status of a pod of a real node that tolerates everything", status(everywhere), false},
		{"delete a pod of a real node that may run on virtual ones", remove(placedHome, now), false},
		{"write the status of a pod of a real node that may run on virtual ones", status(placedHome), false},
		{"delete a pod of a virtual node that was bound by hand", remove(byHand, now), false},
		{"write the status of a pod of a virtual node", status(onVirtual), true},
		{"have a pod of a virtual node tolerate more", merge(onVirtual, `{"spec":{"tolerations":[{"key":"entente.dev/virtual-node","operator":"Exists"},{"key":"y","operator":"Exists"}]}}`), true},
		{"change the image of a pod of a virtual node", merge(onVirtual, `{"spec":{"containers":[{"name":"c","image":"other"}]}}`), false},
		{"keep a pod of a virtual node by a finalizer", merge(onVirtual, `{"metadata":{"finalizers":["entente.dev/finalizer"]}}`), false},
		{"have a pod of a real node tolerate more", merge(ordinary, `{"spec":{"tolerations":[{"key":"x","operator":"Exists"},{"key":"y","operator":"Exists"}]}}`), false},
		{"change the image of a pod of a real node", merge(ordinary, `{"spec":{"containers":[{"name":"c","image":"other"}]}}`), false},
		{"change the image of a pod that waits for a node", merge(waiting, `{"spec":{"containers":[{"name":"c","image":"other"}]}}`), false},
		{"keep a pod of a real node by a finalizer", merge(ordinary, `{"metadata":{"finalizers":["entente.dev/finalizer"]}}`), false},
		{"keep a consumer's pod by a finalizer, without a RoleBinding there", merge(ofAConsumer, `{"metadata":{"finalizers":["entente.dev/finalizer"]}}`), true},
		{"remove that", merge(ofAConsumer, `{"metadata":{"finalizers":null}}`), true},
		{"evict a pod of a real node", evict(ordinary), false},
		{"evict a pod of a real node in a namespace that it offloads", evictBound(placedHome), true},
		{"delete a pod of a real node in a namespace that it offloads", remove(placedHome, now), false},
		{"delete a pod that waits for a node", remove(waiting, now), false},
		{"delete a pod of a virtual node", remove(onVirtual, now), true},
		{"delete a pod of a DaemonSet on a virtual node", remove(daemon, now), true},
		{"label an agent's pod as the leader", label(ofAnAgent, v1alpha1.LabelLeader, "true"), true},
		{"take that back", merge(ofAnAgent, `{"metadata":{"labels":{"entente.dev/leader":null}}}`), true},
		{"make an agent's pod another's", label(ofAnAgent, "app.kubernetes.io/component", "fabric"), false},
		{"annotate an agent's pod", merge(ofAnAgent, `{"metadata":{"annotations":{"a":"b"}}}`), false},
		{"change the image of an agent's pod", merge(ofAnAgent, `{"spec":{"containers":[{"name":"c","image":"other"}]}}`), false},
		{"write the status of an agent's pod", status(ofAnAgent), false},
		{"delete an agent's pod", remove(ofAnAgent, now), false},
		{"label a fabric's pod as the leader", label(ofAFabric, v1alpha1.LabelLeader, "true"), false},
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
	// By default it has no right to any of it.
	for _, signer := range []string{certificatesv1.KubeletServingSignerName, certificatesv1.KubeAPIServerClientSignerName} {
		if err := agent.Create(t.Context(), request(signer)); !apierrors.IsForbidden(err) {
			t.Errorf("ask %s: got %v, want it forbidden", signer, err)
		}
	}
	stranger := request(certificatesv1.KubeletServingSignerName)
	c.create(t, stranger)
	if err := approve(stranger); !apierrors.IsForbidden(err) {
		t.Errorf("approve another's: got %v, want it forbidden", err)
	}
	if err := c.upgrade("--set", "agent.kubeletCertificate=Cluster"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the policy of certificates", func() error {
		err := agent.Create(t.Context(), request(certificatesv1.KubeAPIServerClientSignerName), client.DryRunAll)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "entente-agent-certificates") {
			return fmt.Errorf("a client certificate: %w", cmp.Or(err, errors.New("no error")))
		}
		return nil
	})
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
	both := request(certificatesv1.KubeletServingSignerName)
	both.Spec.Usages = append(both.Spec.Usages, certificatesv1.UsageClientAuth)
	if err := agent.Create(t.Context(), both); !apierrors.IsForbidden(err) {
		t.Errorf("a certificate for clients, too: got %v, want it forbidden", err)
	}
	other := request(certificatesv1.KubeletServingSignerName)
	c.create(t, other)
	if err := approve(other); !apierrors.IsForbidden(err) {
		t.Errorf("approve another's: got %v, want it forbidden", err)
	}
}

// consumerNamespace returns a namespace that was made for a consumer, with the
// agent's rights there.
func (c cluster) consumerNamespace(t *testing.T) string {
	t.Helper()
	ns := newNamespace(labels(v1alpha1.LabelManaged, v1alpha1.Manager, "pod-security.kubernetes.io/enforce", "baseline"))
	c.create(t, ns, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "entente-provider-namespace", Namespace: ns.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "entente-provider-namespace"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "entente-agent", Namespace: namespace}},
	})
	return ns.Name
}

// slice is endpoints of nothing but their addresses.
func slice(namespace string, family discoveryv1.AddressType, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name("slice"), Namespace: namespace}, AddressType: family}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

// tryEach lets the agent create each object and compares with what it may.
func (c cluster) tryEach(t *testing.T, tries []tryCreate) {
	t.Helper()
	agent := c.as(t, "entente-agent", nil)
	for _, try := range tries {
		t.Run(try.name, func(t *testing.T) {
			err := agent.Create(t.Context(), try.object)
			if err == nil {
				t.Cleanup(func() { c.remove(t, try.object) })
			}
			if try.allowed && err != nil || !try.allowed && !apierrors.IsForbidden(err) {
				t.Errorf("got %v; want it allowed: %t", err, try.allowed)
			}
		})
	}
}

type tryCreate struct {
	name    string
	object  client.Object
	allowed bool
}

func (c cluster) testServices(t *testing.T) {
	ns := c.consumerNamespace(t)
	service := func(edit func(*corev1.ServiceSpec)) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name("svc"), Namespace: ns}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
		edit(&s.Spec)
		return s
	}
	plain := service(func(*corev1.ServiceSpec) {})
	c.create(t, plain)
	agent := c.as(t, "entente-agent", nil)
	waitFor(t, "the guard of Services", func() error {
		probe := service(func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort })
		if err := agent.Create(t.Context(), probe, client.DryRunAll); !apierrors.IsForbidden(err) {
			return fmt.Errorf("a NodePort: %w", cmp.Or(err, errors.New("no error")))
		}
		return nil
	})
	c.tryEach(t, []tryCreate{
		{"a Service with an address", service(func(*corev1.ServiceSpec) {}), true},
		{"a headless Service", service(func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone }), true},
		{"a port of each node", service(func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort }), false},
		{"a load balancer", service(func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer }), false},
		{"an external name", service(func(s *corev1.ServiceSpec) {
			s.Type, s.ExternalName = corev1.ServiceTypeExternalName, "metadata.internal"
		}), false},
		{"an address of another owner", service(func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"198.51.100.7"} }), false},
		{"a selector", service(func(s *corev1.ServiceSpec) { s.Selector = labels("app", "web") }), false},
		{"endpoints", slice(ns, discoveryv1.AddressTypeIPv4, "10.1.2.3", "10.240.0.9"), true},
		{"endpoints of IPv6", slice(ns, discoveryv1.AddressTypeIPv6, "fd00::7"), true},
		{"a host name as endpoint", slice(ns, discoveryv1.AddressTypeFQDN, "metadata.internal"), false},
	})
	for what, patch := range map[string]string{
		"to a port of each node": `{"spec":{"type":"NodePort"}}`, "to an address of another owner": `{"spec":{"externalIPs":["198.51.100.7"]}}`,
		"to a selector": `{"spec":{"selector":{"app":"web"}}}`,
	} {
		if err := agent.Patch(t.Context(), plain.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch))); !apierrors.IsForbidden(err) {
			t.Errorf("change a Service %s: got %v, want it forbidden", what, err)
		}
	}
}

// testEndpoints sets the cluster's prefixes in the chart.
func (c cluster) testEndpoints(t *testing.T) {
	if err := c.upgrade("--set", "cluster.podCIDRs={10.200.0.0/16,fd00:200::/48}", "--set", "cluster.serviceCIDRs={10.200.128.0/20}", "--set", "network.aliasPool={10.224.0.0/12}"); err != nil {
		t.Fatal(err)
	}
	ns := c.consumerNamespace(t)
	agent := c.as(t, "entente-agent", nil)
	waitFor(t, "the policy of endpoints", func() error {
		if err := agent.Create(t.Context(), slice(ns, discoveryv1.AddressTypeIPv4, "203.0.113.9"), client.DryRunAll); !apierrors.IsForbidden(err) {
			return fmt.Errorf("an address of elsewhere: %w", cmp.Or(err, errors.New("no error")))
		}
		return nil
	})
	c.tryEach(t, []tryCreate{
		{"pods and aliases", slice(ns, discoveryv1.AddressTypeIPv4, "10.200.3.4", "10.225.0.9"), true},
		{"a pod's second address", slice(ns, discoveryv1.AddressTypeIPv6, "fd00:200::9"), true},
		{"none", slice(ns, discoveryv1.AddressTypeIPv4), true},
		{"one of a node among those of pods", slice(ns, discoveryv1.AddressTypeIPv4, "10.200.3.4", "192.0.2.1"), false},
		{"one of a Service", slice(ns, discoveryv1.AddressTypeIPv4, "10.200.128.1"), false},
		{"one of IPv6 from elsewhere", slice(ns, discoveryv1.AddressTypeIPv6, "2001:db8::1"), false},
	})
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
	c.testFindings(t, fabric, mine)
	var nodes corev1.NodeList
	if err := fabric.List(t.Context(), &nodes, client.MatchingFields{"metadata.name": mine.Name}); err != nil {
		t.Errorf("its own Node: %v", err)
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
	c.testNodeDiscovery(t, fabric, mine.Name, map[string]client.Client{
		"the fabric of another node":        c.as(t, "entente-fabric", map[string][]string{claim: {"elsewhere"}}),
		"a token that names no node":        c.as(t, "entente-fabric", nil),
		"a token that names it and another": c.as(t, "entente-fabric", map[string][]string{claim: {mine.Name, "elsewhere"}}),
	})
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

// testFindings: what a node finds of itself is kept, nothing included, and people with no more
// than the right to look can read it.
func (c cluster) testFindings(t *testing.T, fabric client.Client, mine *v1alpha1.FabricNode) {
	t.Helper()
	viewer := name("viewer")
	c.create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: viewer},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "entente-view"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: viewer, Namespace: namespace}},
	})
	views := c.as(t, viewer, nil)
	long := strings.Repeat("x", 1024)
	for _, want := range [][]v1alpha1.FabricFinding{
		nil,
		{{Reason: "PortTaken", Severity: "Error", Message: long, Remedy: long}, {Reason: "HostRoutingByEBPF", Severity: "Info", Message: "m", Remedy: "r"}},
		nil,
	} {
		patch := client.MergeFrom(mine.DeepCopy())
		mine.Status.Preflight = &v1alpha1.FabricPreflight{Findings: want}
		if err := fabric.Status().Patch(t.Context(), mine, patch); err != nil {
			t.Fatalf("findings %v: %v", want, err)
		}
		var got v1alpha1.FabricNodeList
		var err error
		for range 100 { // a role takes a moment to be in force
			if err = views.List(t.Context(), &got); !apierrors.IsForbidden(err) {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		i := slices.IndexFunc(got.Items, func(n v1alpha1.FabricNode) bool { return n.Name == mine.Name })
		if err != nil || i < 0 || got.Items[i].Status.Preflight == nil || !equality.Semantic.DeepEqual(got.Items[i].Status.Preflight.Findings, want) {
			t.Errorf("a viewer reads %v, %+v, want the findings %v", err, got.Items, want)
		}
	}
}

// testNodeDiscovery: the agent decides what the fabric of a node does on its LANs, and that
// fabric alone reports what it found.
func (c cluster) testNodeDiscovery(t *testing.T, fabric client.Client, node string, others map[string]client.Client) {
	agent := c.as(t, "entente-agent", nil)
	nd := &v1alpha1.NodeDiscovery{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := fabric.Create(t.Context(), nd.DeepCopy()); !apierrors.IsForbidden(err) {
		t.Errorf("a fabric makes itself a NodeDiscovery: got %v, want it forbidden", err)
	}
	nd.Spec.Publish = &v1alpha1.PublishedCluster{
		Instance: "office", Host: "entente-abcdefgh", Port: 7443, Addresses: []string{"192.0.2.1", "2001:db8::1"}, ClusterID: strings.Repeat("a", 32),
	}
	if err := agent.Create(t.Context(), nd); err != nil {
		t.Fatalf("the agent makes a NodeDiscovery: %v", err)
	}
	t.Cleanup(func() { c.remove(t, nd) })
	patch := func(text string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(text)) }
	found := func(edit string) client.Patch {
		return patch(`{"status":{"observedAt":"2026-01-01T00:00:00Z","since":"2026-01-01T00:00:00Z","interfaces":["eth0"],"problems":null,` +
			`"clusters":[{"interface":"eth0","clusterID":"` + strings.Repeat("b", 32) + `","name":"home","endpoints":["192.0.2.7:7443"]` + edit + `}]}}`)
	}
	if err := fabric.Status().Patch(t.Context(), nd.DeepCopy(), found("")); err != nil {
		t.Errorf("its own NodeDiscovery's status: %v", err)
	}
	if err := fabric.Status().Patch(t.Context(), nd.DeepCopy(), found(`,"clusterID":"../x"`)); !apierrors.IsInvalid(err) {
		t.Errorf("a malformed ID: got %v, want it invalid", err)
	}
	if err := fabric.Status().Patch(t.Context(), nd.DeepCopy(), found(`,"endpoints":[`+strings.Repeat(`"192.0.2.7:7443",`, 8)+`"192.0.2.8:7443"]`)); !apierrors.IsInvalid(err) {
		t.Errorf("nine endpoints: got %v, want it invalid", err)
	}
	if err := fabric.Patch(t.Context(), nd.DeepCopy(), patch(`{"spec":{"publish":{"port":1}}}`)); !apierrors.IsForbidden(err) {
		t.Errorf("a fabric changes what is published: got %v, want it forbidden", err)
	}
	if err := fabric.Delete(t.Context(), nd.DeepCopy()); !apierrors.IsForbidden(err) {
		t.Errorf("a fabric deletes it: got %v, want it forbidden", err)
	}
	for who, cl := range others {
		if err := cl.Status().Patch(t.Context(), nd.DeepCopy(), found("")); !apierrors.IsForbidden(err) {
			t.Errorf("%s reports what the node found: got %v, want it forbidden", who, err)
		}
	}
	if err := agent.Status().Patch(t.Context(), nd.DeepCopy(), found("")); !apierrors.IsForbidden(err) {
		t.Errorf("the agent reports what the node found: got %v, want it forbidden", err)
	}
	if err := agent.Patch(t.Context(), nd.DeepCopy(), patch(`{"spec":{"publish":{"addresses":["office.example"]}}}`)); !apierrors.IsInvalid(err) {
		t.Errorf("a name for an address: got %v, want it invalid", err)
	}
	var list v1alpha1.NodeDiscoveryList
	if err := fabric.List(t.Context(), &list, client.MatchingFields{"metadata.name": node}); err != nil || len(list.Items) != 1 || len(list.Items[0].Status.Clusters) != 1 {
		t.Errorf("its own NodeDiscovery, as a watch lists it: %+v, %v", list.Items, err)
	}
	if err := agent.Delete(t.Context(), nd.DeepCopy()); err != nil {
		t.Errorf("the agent removes it: %v", err)
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
				corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{field}, MatchExpressions: []corev1.NodeSelectorRequirement{remote}}),
		},
		"a pod that has it already": {
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
				pod := newPod(c.offloaded(t, strategy, nil), *row.spec.DeepCopy())
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

// testSelector compares with which nodes the scheduler may choose: home ones, and
// virtual ones by the labels of their peers.
func (c cluster) testSelector(t *testing.T) {
	selector := &metav1.LabelSelector{
		MatchLabels: map[string]string{"example.com/region": "it"},
		MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "tier", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"slow", "old"}},
			{Key: "paid", Operator: metav1.LabelSelectorOpExists},
			{Key: "entente.dev/peer", Operator: metav1.LabelSelectorOpIn, Values: []string{"p1", "p2"}},
		},
	}
	virtual := func(peer string, l map[string]string) labelset.Set {
		set := labelset.Set{virtualNode: "true", "entente.dev/peer": peer, "zone": "a"}
		for k, v := range l {
			set["peer.entente.dev/"+k] = v
		}
		return set
	}
	chosen := map[string]string{"example.com_region": "it", "paid": "yes"}
	nodes := map[string]labelset.Set{
		"home": {"zone": "a"}, "home in another zone": {"zone": "b"},
		"chosen": virtual("p1", chosen), "chosen, too": virtual("p2", map[string]string{"example.com_region": "it", "paid": "no", "tier": "fast"}),
		"another peer": virtual("p3", chosen), "without a label": virtual("p1", map[string]string{"paid": "yes"}),
		"with another value":  virtual("p1", map[string]string{"example.com_region": "fr", "paid": "yes"}),
		"with a value not in": virtual("p1", map[string]string{"example.com_region": "it", "paid": "yes", "tier": "slow"}),
		// A provider's own labels are not labels of the peer.
		"that claims it itself": {virtualNode: "true", "entente.dev/peer": "p1", "zone": "a", "example.com/region": "it", "paid": "yes"},
	}
	term := func(key, value string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: "In", Values: []string{value}}}}
	}
	terms := func(terms ...corev1.NodeSelectorTerm) corev1.PodSpec {
		return corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}}
	}
	for _, row := range []struct {
		name     string
		strategy v1alpha1.PodStrategy
		spec     corev1.PodSpec
		want     []string
	}{
		{"Remote", v1alpha1.StrategyRemote, corev1.PodSpec{}, []string{"chosen", "chosen, too"}},
		{"LocalAndRemote", v1alpha1.StrategyLocalAndRemote, corev1.PodSpec{}, []string{"chosen", "chosen, too", "home", "home in another zone"}},
		{"LocalAndRemote in a zone", v1alpha1.StrategyLocalAndRemote, terms(term("zone", "a")), []string{"chosen", "chosen, too", "home"}},
		{"LocalAndRemote with alternatives", v1alpha1.StrategyLocalAndRemote, terms(term("zone", "b"), term("entente.dev/peer", "p1")), []string{"chosen", "home in another zone"}},
		{"LocalAndRemote for virtual nodes", v1alpha1.StrategyLocalAndRemote, terms(term(virtualNode, "true")), []string{"chosen", "chosen, too"}},
		{"LocalAndRemote that cannot cross", v1alpha1.StrategyLocalAndRemote, corev1.PodSpec{HostNetwork: true}, slices.Sorted(maps.Keys(nodes))}, // but untolerated
	} {
		t.Run(row.name, func(t *testing.T) {
			pod := c.admit(t, newPod(c.offloaded(t, row.strategy, selector), row.spec))
			affinity, err := nodeaffinity.NewNodeSelector(nodeSelectorOf(pod))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for name, l := range nodes {
				if affinity.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: l}}) {
					got = append(got, name)
				}
			}
			slices.Sort(got)
			if diff := gocmp.Diff(row.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s\nof %+v", diff, nodeSelectorOf(pod))
			}
			again := newPod(pod.Namespace, pod.Spec)
			if c.admit(t, again); !equality.Semantic.DeepEqual(again.Spec.Affinity, pod.Spec.Affinity) {
				t.Errorf("a second time it becomes %+v", again.Spec.Affinity)
			}
		})
	}
}

// nodeSelectorOf returns a pod's node selector; one that all nodes match if it has none.
func nodeSelectorOf(p *corev1.Pod) *corev1.NodeSelector {
	if p.Spec.Affinity == nil {
		return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "none", Operator: corev1.NodeSelectorOpDoesNotExist}}}}}
	}
	return p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// cannotCross has, for each refused row of the table in docs/offloading.md, a pod that
// has the field, as JSON merged into an ordinary one.
func cannotCross() map[string]string {
	rows := map[string]string{
		"spec.hostIPC":          `{"hostIPC":true}`,
		"spec.hostNetwork":      `{"hostNetwork":true}`,
		"spec.hostPID":          `{"hostPID":true}`,
		"spec.resourceClaims":   `{"resourceClaims":[{"name":"gpu","resourceClaimName":"gpu"}]}`,
		"spec.resources.claims": "", // the API server takes none
		"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector":     `{"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"kubernetes.io/hostname","namespaceSelector":{"matchLabels":{"tier":"x"}}}]}}}`,
		"spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[].namespaceSelector": `{"affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"topology.kubernetes.io/zone","namespaceSelector":{"matchExpressions":[{"key":"tier","operator":"Exists"}]}}]}}}`,
		"spec.securityContext.windowsOptions.hostProcess":                                                  `{"os":{"name":"windows"},"hostNetwork":true,"securityContext":{"windowsOptions":{"hostProcess":true}}}`,
		"spec.containers[].ports[].hostIP":                                                                 `{"containers":[{"name":"c","image":"i","ports":[{"containerPort":80,"hostIP":"192.0.2.1"}]}]}`,
		"spec.containers[].ports[].hostPort":                                                               `{"initContainers":[{"name":"i","image":"i","ports":[{"containerPort":80,"hostPort":80}]}]}`,
		"spec.containers[].resources.claims":                                                               `{"resourceClaims":[{"name":"gpu","resourceClaimName":"gpu"}],"containers":[{"name":"c","image":"i","resources":{"claims":[{"name":"gpu"}]}}]}`,
		"spec.containers[].securityContext.windowsOptions.hostProcess":                                     `{"os":{"name":"windows"},"hostNetwork":true,"containers":[{"name":"c","image":"i","securityContext":{"windowsOptions":{"hostProcess":true}}}]}`,
		"spec.containers[].volumeDevices":                                                                  `{"volumes":[{"name":"v","persistentVolumeClaim":{"claimName":"v"}}],"containers":[{"name":"c","image":"i","volumeDevices":[{"name":"v","devicePath":"/dev/x"}]}]}`,
		"spec.volumes[].projected.sources[].clusterTrustBundle":                                            `{"volumes":[{"name":"v","projected":{"sources":[{"clusterTrustBundle":{"name":"b","path":"ca"}}]}}]}`,
		"spec.volumes[].projected.sources[].podCertificate":                                                `{"volumes":[{"name":"v","projected":{"sources":[{"podCertificate":{"signerName":"example.com/s","keyType":"ED25519","credentialBundlePath":"c"}}]}}]}`,
	}
	for kind, source := range map[string]string{
		"awsElasticBlockStore": `{"volumeID":"v"}`, "azureDisk": `{"diskName":"d","diskURI":"/subscriptions/x/resourcegroups/y/providers/microsoft.compute/disks/z","kind":"Managed"}`,
		"azureFile": `{"secretName":"s","shareName":"s"}`, "cephfs": `{"monitors":["m"]}`, "cinder": `{"volumeID":"v"}`, "csi": `{"driver":"d"}`,
		"fc": `{"targetWWNs":["w"],"lun":1}`, "flexVolume": `{"driver":"a/b"}`, "flocker": `{"datasetName":"d"}`, "gcePersistentDisk": `{"pdName":"p"}`,
		"gitRepo": `{"repository":"r"}`, "glusterfs": `{"endpoints":"e","path":"p"}`, "hostPath": `{"path":"/x"}`, "iscsi": `{"targetPortal":"p","iqn":"iqn.2001-04.com.example:x","lun":0}`,
		"nfs": `{"server":"s","path":"/x"}`, "photonPersistentDisk": `{"pdID":"p"}`, "portworxVolume": `{"volumeID":"v"}`,
		"quobyte": `{"registry":"r:1","volume":"v"}`, "rbd": `{"monitors":["m"],"image":"i"}`, "scaleIO": `{"gateway":"g","system":"s","secretRef":{"name":"s"},"volumeName":"v"}`,
		"storageos": `{"volumeName":"v"}`, "vsphereVolume": `{"volumePath":"p"}`,
	} {
		rows["spec.volumes[]."+kind] = fmt.Sprintf(`{"volumes":[{"name":"v",%q:%s}]}`, kind, source)
	}
	return rows
}

// testClaims keeps pods with claims at home where they may be, and does not warn about those
// that are sent.
func (c cluster) testClaims(t *testing.T) {
	for _, volume := range []string{
		`{"name":"v","persistentVolumeClaim":{"claimName":"c"}}`,
		`{"name":"v","ephemeral":{"volumeClaimTemplate":{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}}}`,
	} {
		for strategy, goes := range map[v1alpha1.PodStrategy]bool{v1alpha1.StrategyRemote: true, v1alpha1.StrategyLocalAndRemote: false} {
			pod := newPod(c.offloaded(t, strategy, nil), corev1.PodSpec{})
			if err := json.Unmarshal([]byte(`{"volumes":[`+volume+`]}`), &pod.Spec); err != nil {
				t.Fatal(err)
			}
			got := slices.ContainsFunc(c.admit(t, pod).Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == virtualNode })
			if got != goes {
				t.Errorf("with %s a pod with %s tolerates virtual nodes: %t", strategy, volume, got)
			}
		}
	}
}

func (c cluster) testCannotCross(t *testing.T) {
	rows := cannotCross()
	doc, err := os.ReadFile(filepath.Join(repository(t), "docs", "offloading.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(doc)) {
		cells := strings.Split(line, " | ")
		if path := strings.Trim(cells[0], "|` "); len(cells) == 3 && cells[1] == "refused" {
			if _, ok := rows[path]; !ok {
				t.Errorf("%s is refused, and no pod here has it", path)
			}
		}
	}
	both, remote := c.offloaded(t, v1alpha1.StrategyLocalAndRemote, nil), c.offloaded(t, v1alpha1.StrategyRemote, nil)
	warnings := &warned{}
	config := rest.CopyConfig(c.config)
	config.WarningHandlerWithContext = warnings
	user, err := client.New(config, client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	tolerates := func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == virtualNode })
	}
	for path, patch := range rows {
		if patch == "" {
			continue
		}
		t.Run(path, func(t *testing.T) {
			for _, ns := range []string{both, remote} {
				pod := newPod(ns, corev1.PodSpec{})
				if err := json.Unmarshal([]byte(patch), &pod.Spec); err != nil {
					t.Fatal(err)
				}
				warnings.texts = nil
				if err := user.Create(t.Context(), pod, client.DryRunAll); err != nil {
					t.Fatal(err)
				}
				if tolerates(pod) != (ns == remote) {
					t.Errorf("in a namespace that is Remote (%t): its tolerations are %+v", ns == remote, pod.Spec.Tolerations)
				}
				if told := strings.Contains(fmt.Sprint(warnings.texts), "this one cannot: "); told != (ns == remote) {
					t.Errorf("in a namespace that is Remote (%t): warnings %q", ns == remote, warnings.texts)
				}
			}
		})
	}
	t.Run("a Deployment", func(t *testing.T) {
		warnings.texts = nil
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: remote, Name: "d"}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels("a", "b")},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels("a", "b")}, Spec: corev1.PodSpec{
				HostPID: true, Containers: []corev1.Container{{Name: "c", Image: "i", Ports: []corev1.ContainerPort{{ContainerPort: 1, HostPort: 1}}}},
			}},
		}}
		if err := user.Create(t.Context(), d, client.DryRunAll); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(warnings.texts); !strings.Contains(got, "spec.hostPID, hostPort of container c; to run it at home, let it be created with the annotation entente.dev/pod-strategy: Local") {
			t.Errorf("warnings %q", got)
		}
	})
	t.Run("what can cross", func(t *testing.T) {
		warnings.texts = nil
		pod := newPod(both, corev1.PodSpec{})
		pod.Spec.ServiceAccountName = "default"
		all := `{"volumes":[{"name":"a","configMap":{"name":"c"}},{"name":"b","secret":{"secretName":"s"}},{"name":"c","emptyDir":{}},{"name":"d","downwardAPI":{}},
			{"name":"e","projected":{"sources":[{"serviceAccountToken":{"path":"t"}},{"configMap":{"name":"c"}}]}},{"name":"f","image":{"reference":"i"}}],
			"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}]}]}`
		if err := json.Unmarshal([]byte(all), &pod.Spec); err != nil {
			t.Fatal(err)
		}
		if err := user.Create(t.Context(), pod, client.DryRunAll); err != nil || !tolerates(pod) || len(warnings.texts) > 0 {
			t.Errorf("%v, warnings %q, tolerations %+v", err, warnings.texts, pod.Spec.Tolerations)
		}
	})
}

// warned collects what the API server warns of.
type warned struct{ texts []string }

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (w *warned) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	w.texts = append(w.texts, text)
}

// newDaemonSet returns one whose pods have these tolerations and this affinity.
func newDaemonSet(namespace string, affinity *corev1.Affinity, tolerations ...corev1.Toleration) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name("ds")}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels("a", "b")},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels("a", "b")}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i"}}, Tolerations: tolerations, Affinity: affinity,
		}},
	}}
}

func goesToVirtualNodes(t *testing.T, d *appsv1.DaemonSet) bool {
	t.Helper()
	pod := &corev1.Pod{Spec: d.Spec.Template.Spec}
	ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "v", Labels: labels(virtualNode, "true", "zone", "a")}})
	if err != nil {
		t.Error(err)
	}
	return ok
}

// testDaemonSets checks on which nodes the controller of DaemonSets makes pods: where
// they match, and tolerate the taint.
func (c cluster) testDaemonSets(t *testing.T) {
	ns := newNamespace(nil)
	c.create(t, ns)
	everything := corev1.Toleration{Operator: "Exists"}
	if err := c.upgrade("--set", "placement.daemonSets=true"); err != nil {
		t.Fatal(err)
	}
	c.testNewDaemonSets(t)
	// One that was there before: not touched until its template changes.
	if err := c.upgrade(); err != nil {
		t.Fatal(err)
	}
	old := newDaemonSet(ns.Name, nil, everything)
	waitFor(t, "the policy of DaemonSets to end", func() error {
		d := old.DeepCopy()
		if err := c.admin.Create(t.Context(), d, client.DryRunAll); err != nil || !goesToVirtualNodes(t, d) {
			return fmt.Errorf("it is kept off: %w", cmp.Or(err, errors.New("no error")))
		}
		return nil
	})
	c.create(t, old)
	if err := c.upgrade("--set", "placement.daemonSets=true"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the policy of DaemonSets to be back", func() error {
		d := old.DeepCopy()
		d.Spec.Template.Spec.Containers[0].Image = "new"
		if err := c.admin.Update(t.Context(), d, client.DryRunAll); err != nil || goesToVirtualNodes(t, d) {
			return fmt.Errorf("with a new template it goes to virtual nodes: %w", cmp.Or(err, errors.New("no error")))
		}
		return nil
	})
	d := old.DeepCopy()
	d.Labels = labels("only", "this")
	if err := c.admin.Update(t.Context(), d, client.DryRunAll); err != nil || d.Spec.Template.Spec.Affinity != nil {
		t.Errorf("a label changes its template: %v, %+v", err, d.Spec.Template.Spec.Affinity)
	}
}

// testNewDaemonSets checks what becomes of the affinity of new DaemonSets, by the policy or by the webhook.
func (c cluster) testNewDaemonSets(t *testing.T) {
	ns := newNamespace(nil)
	c.create(t, ns)
	everything, ours := corev1.Toleration{Operator: "Exists"}, corev1.Toleration{Key: virtualNode, Operator: "Exists"}
	zone := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: "Exists"}}}
	field := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{"v"}}}}
	nodeAffinity := func(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	}
	set := func(affinity *corev1.Affinity, tolerations ...corev1.Toleration) *appsv1.DaemonSet {
		return newDaemonSet(ns.Name, affinity, tolerations...)
	}
	waitFor(t, "DaemonSets to be kept off", func() error {
		d := set(nil, everything)
		if err := c.admin.Create(t.Context(), d, client.DryRunAll); err != nil || goesToVirtualNodes(t, d) {
			return fmt.Errorf("one that tolerates everything goes to virtual nodes: %w", cmp.Or(err, errors.New("no error")))
		}
		return nil
	})
	for name, row := range map[string]struct {
		set     *appsv1.DaemonSet
		changed bool
	}{
		"tolerates everything":       {set(nil, everything), true},
		"tolerates virtual nodes":    {set(nil, ours), true},
		"tolerates all NoSchedule":   {set(nil, corev1.Toleration{Operator: "Exists", Effect: "NoSchedule"}), true},
		"tolerates NoExecute":        {set(nil, corev1.Toleration{Operator: "Exists", Effect: "NoExecute"}), false},
		"wants a zone":               {set(nodeAffinity(zone, zone), everything), true},
		"wants a node or a zone":     {set(nodeAffinity(field, corev1.NodeSelectorTerm{}, zone), everything), true},
		"prefers":                    {set(&corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}, everything), true},
		"keeps away from other pods": {set(&corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}}, everything), true},
		"tolerates something else":   {set(nil, corev1.Toleration{Key: "x", Operator: "Exists"}), false},
		"names its own nodes":        {set(nodeAffinity(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: virtualNode, Operator: "In", Values: []string{"true"}}}}), everything), false},
	} {
		before := row.set.DeepCopy()
		if err := c.admin.Create(t.Context(), row.set, client.DryRunAll); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		is := row.set.Spec.Template.Spec.Affinity
		if changed := !equality.Semantic.DeepEqual(before.Spec.Template.Spec.Affinity, is); changed != row.changed || changed && goesToVirtualNodes(t, row.set) {
			t.Errorf("%s: its affinity is %+v", name, is)
		}
		if webhook := keptOff(t, before).Spec.Template.Spec.Affinity; !equality.Semantic.DeepEqual(webhook, is) {
			t.Errorf("%s: the webhook makes the affinity %s, the API server has %s", name, text(webhook), text(is))
		}
	}
}

// testNames compares the names of our kinds with all others that the server has.
func (c cluster) testNames(t *testing.T) {
	client, err := discovery.NewDiscoveryClientForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	ours, others := map[string]string{}, map[string]string{}
	for _, list := range lists {
		group, _, _ := strings.Cut(list.GroupVersion, "/")
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") {
				continue
			}
			into := others
			if group == v1alpha1.GroupVersion.Group {
				into = ours
			}
			for _, n := range append([]string{r.Name, r.SingularName, r.Kind}, r.ShortNames...) {
				into[strings.ToLower(n)] = r.Name + " of " + list.GroupVersion
			}
		}
	}
	if len(ours) < 8*2 || len(others) < 100 {
		t.Fatalf("%d names of ours, %d of others: the list is read wrongly", len(ours), len(others))
	}
	for n, what := range ours {
		if n != "" && others[n] != "" {
			t.Errorf("%q is %s and %s, too", n, what, others[n])
		}
	}
}

// testUnoffload runs the reconciler as the agent.
func (c cluster) testUnoffload(t *testing.T) {
	ns := newNamespace(nil)
	c.create(t, ns)
	offloading := &v1alpha1.NamespaceOffloading{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NamespaceOffloadingName, Namespace: ns.Name},
		Spec:       v1alpha1.NamespaceOffloadingSpec{PodStrategy: v1alpha1.StrategyRemote},
	}
	if err := c.admin.Create(t.Context(), offloading); err != nil {
		t.Fatal(err)
	}
	said := events.NewFakeRecorder(10)
	r := &namespaces.Reconciler{
		Client:         c.as(t, "entente-agent", nil),
		ServiceAccount: client.ObjectKey{Namespace: namespace, Name: "entente-agent"},
		Evict:          func(context.Context, string) (int, error) { return 0, nil },
		States:         func(string, *metav1.LabelSelector) []v1alpha1.NamespaceInCluster { return nil },
		Changed:        func() {}, Events: said,
	}
	reconcile := func() {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(offloading)}); err != nil {
			t.Fatal(err)
		}
	}
	reconcile()
	if err := c.admin.Get(t.Context(), client.ObjectKeyFromObject(offloading), offloading); err != nil || offloading.Status.State != "NoProvider" {
		t.Errorf("its state is %q, %v", offloading.Status.State, err)
	}
	pod := func(owners ...metav1.OwnerReference) *corev1.Pod {
		p := newPod(ns.Name, corev1.PodSpec{})
		p.OwnerReferences = owners
		return p
	}
	restricted := func(p *corev1.Pod) bool { return p.Spec.Affinity != nil }
	waitFor(t, "the placement policy", func() error {
		if !restricted(c.admit(t, pod())) {
			return errors.New("a pod may run anywhere")
		}
		return nil
	})
	waits, bare := pod(metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "o", UID: "u", Controller: new(true)}), pod()
	c.create(t, waits, bare)
	if !restricted(waits) || !restricted(bare) {
		t.Fatal("the pods may run anywhere")
	}
	if err := c.admin.Delete(t.Context(), offloading); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		reconcile()
	}
	if err := c.admin.Get(t.Context(), client.ObjectKeyFromObject(offloading), offloading); !apierrors.IsNotFound(err) {
		t.Errorf("the NamespaceOffloading is still there: %v, %+v", err, offloading.Status)
	}
	if err := c.admin.Get(t.Context(), client.ObjectKeyFromObject(waits), waits); !apierrors.IsNotFound(err) {
		t.Errorf("the pod that waits, which its controller replaces: got %v, want it gone", err)
	}
	if err := c.admin.Get(t.Context(), client.ObjectKeyFromObject(bare), bare); err != nil {
		t.Errorf("the pod without a controller: %v", err)
	}
	select {
	case text := <-said.Events:
		if !strings.Contains(text, "NotOffloaded") {
			t.Errorf("the event is %q", text)
		}
	default:
		t.Error("no event reports the pod without a controller")
	}
	waitFor(t, "placement to end", func() error {
		if restricted(c.admit(t, pod())) {
			return errors.New("a pod may run on virtual nodes only")
		}
		return nil
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
func (c cluster) offloaded(t *testing.T, strategy v1alpha1.PodStrategy, selector *metav1.LabelSelector) string {
	t.Helper()
	ns := newNamespace(labels(v1alpha1.LabelOffloading, "enabled"))
	c.create(t, ns)
	c.create(t, &v1alpha1.NamespaceOffloading{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NamespaceOffloadingName, Namespace: ns.Name},
		Spec:       v1alpha1.NamespaceOffloadingSpec{PodStrategy: strategy, ClusterSelector: selector},
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
	var err error
	if !waittest.Soon(func() bool {
		err = try()
		return err == nil
	}) {
		t.Fatalf("wait for %s: %v", what, err)
	}
}

// testDryRun: what the API server says it would store of a changed PeeringRequest is
// a later generation of the same one: that is how an amendment is known in a preview.
func (c cluster) testDryRun(t *testing.T) {
	request := &v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: name("request")}, Spec: v1alpha1.PeeringRequestSpec{ForeignCluster: "office"}}
	c.create(t, request)
	changed := request.DeepCopy()
	changed.Spec.Resources = corev1.ResourceList{"cpu": resource.MustParse("1")}
	if err := c.admin.Patch(t.Context(), changed, client.MergeFrom(request), client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if changed.UID != request.UID || changed.Generation != request.Generation+1 {
		t.Errorf("a change would be generation %d of %s, and is %d of %s", changed.Generation, changed.UID, request.Generation, request.UID)
	}
	again := request.DeepCopy()
	if err := c.admin.Patch(t.Context(), again, client.MergeFrom(request), client.DryRunAll); err != nil || again.Generation != request.Generation {
		t.Errorf("no change would be generation %d, and is %d: %v", again.Generation, request.Generation, err)
	}
}

// testPolicies: what is switched off in the values is gone after an upgrade or a
// rollback, and comes again. Policies of the cluster's owner stay, whatever they are
// called, and none of them has the name of one of the chart's.
func (c cluster) testPolicies(t *testing.T) {
	const automatic = "discovery.automatic.enabled=true,discovery.automatic.trustOnFirstUse=true"
	are := func(want ...string) {
		t.Helper()
		var list v1alpha1.PeeringPolicyList
		if err := c.admin.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, p := range list.Items {
			got = append(got, p.Name)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("there are %q, want %q", got, want)
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	own := map[string]*v1alpha1.PeeringPolicy{}
	for _, name := range []string{"automatic", "default"} {
		own[name] = &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.PeeringPolicySpec{Accept: v1alpha1.AcceptNever}}
		c.create(t, own[name])
	}
	are("automatic", "default", "entente-default")
	// Changes of the chart's policy are lost, as the pages say.
	var edited v1alpha1.PeeringPolicy
	do(c.admin.Get(t.Context(), client.ObjectKey{Name: "entente-default"}, &edited))
	was := edited.Spec.Accept
	edited.Spec.Accept = v1alpha1.AcceptNever
	do(c.admin.Update(t.Context(), &edited))
	do(c.upgrade("--set", automatic))
	are("automatic", "default", "entente-automatic", "entente-default")
	if do(c.admin.Get(t.Context(), client.ObjectKeyFromObject(&edited), &edited)); edited.Spec.Accept != was {
		t.Errorf("after the upgrade the chart's policy accepts %s, want %s as the values say", edited.Spec.Accept, was)
	}
	do(c.upgrade())
	are("automatic", "default", "entente-default")
	do(c.rollback())
	are("automatic", "default", "entente-automatic", "entente-default")
	do(c.rollback())
	are("automatic", "default", "entente-default")
	do(c.upgrade("--set", "policy.enabled=false"))
	are("automatic", "default")
	// As `helm template | kubectl apply` does, which cannot ask the cluster.
	for _, p := range all[*v1alpha1.PeeringPolicy](render(t, "--set", "policy.enabled=false")) {
		c.create(t, p)
	}
	do(c.upgrade())
	are("automatic", "default", "entente-default")
	for name, p := range own {
		var now v1alpha1.PeeringPolicy
		if do(c.admin.Get(t.Context(), client.ObjectKeyFromObject(p), &now)); now.UID != p.UID || now.Generation != p.Generation {
			t.Errorf("the owner's policy %s is another one", name)
		}
	}
	// Helm knows its hooks by their names alone, so no other object has them.
	taken := func() *v1alpha1.PeeringPolicy {
		return &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "entente-automatic"}, Spec: v1alpha1.PeeringPolicySpec{Accept: v1alpha1.AcceptNever}}
	}
	waitFor(t, "a name of the chart's to be refused", func() error {
		p := taken()
		err := c.admin.Create(t.Context(), p)
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "another name") {
			return nil
		}
		if err == nil {
			c.remove(t, p)
		}
		return fmt.Errorf("the error is %w", err)
	})
	var disowned v1alpha1.PeeringPolicy
	do(c.admin.Get(t.Context(), client.ObjectKey{Name: "entente-default"}, &disowned))
	disowned.Labels = nil
	if err := c.admin.Update(t.Context(), &disowned); !apierrors.IsForbidden(err) {
		t.Errorf("the chart's policy without its labels: got %v, want it forbidden", err)
	}
	// One that is older than the chart is left alone, and the chart reports that.
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "entente-policy-names"}}
	do(c.admin.Delete(t.Context(), binding))
	older := taken()
	waitFor(t, "a name of the chart's to be free", func() error { return c.admin.Create(t.Context(), older) })
	t.Cleanup(func() { c.remove(t, older) })
	if err := c.upgrade("--set", automatic); err == nil || !strings.Contains(err.Error(), "entente-automatic") {
		t.Errorf("got %v, want it to say whose name is taken", err)
	}
	do(c.upgrade())
	var now v1alpha1.PeeringPolicy
	if do(c.admin.Get(t.Context(), client.ObjectKeyFromObject(older), &now)); now.UID != older.UID {
		t.Error("a policy that is not the chart's is another one")
	}
}

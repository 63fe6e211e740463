package profiles

import (
	"os"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/charttest"
	"github.com/entente-dev/entente/internal/kube"
)

// A trusted ForeignCluster has a ClusterProfile that follows it, by the agent's own rights, on an
// API server with the upstream kind; without the kind nothing happens.
func TestForeignClustersAreClusterProfilesOnARealAPIServer(t *testing.T) {
	server := charttest.StartAPIServer(t)
	owner, err := client.New(server.Owner, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := client.New(server.As("entente-agent"), client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	clock := time.Now()
	r := &Reconciler{Client: owner, Direct: agent, Namespace: "entente-system", Now: func() time.Time { return clock }}
	fc := &api.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "office"}, Spec: api.ForeignClusterSpec{ClusterID: "abcdefghijklmnopqrstuvwxyz234567"}}
	if err := owner.Create(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	say := func(conditions map[string]metav1.ConditionStatus) {
		t.Helper()
		fc.Status.Conditions = nil
		for kind, status := range conditions {
			fc.Status.Conditions = append(fc.Status.Conditions, metav1.Condition{
				Type: kind, Status: status, Reason: "Because", Message: "of that", LastTransitionTime: metav1.NewTime(time.Unix(1_800_000_000, 0)),
			})
		}
		fc.Status.Role = api.RoleProvider
		if err := owner.Status().Update(t.Context(), fc); err != nil {
			t.Fatal(err)
		}
	}
	look := func() *unstructured.Unstructured {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "office"}}); err != nil {
			t.Fatal(err)
		}
		p := &unstructured.Unstructured{}
		p.SetGroupVersionKind(kind())
		if err := owner.Get(t.Context(), client.ObjectKey{Namespace: "entente-system", Name: "office"}, p); err != nil {
			return nil
		}
		return p
	}
	say(map[string]metav1.ConditionStatus{api.ConditionTrusted: "True", api.ConditionConnected: "True"})
	if look() != nil {
		t.Fatal("there is a profile, and no such kind")
	}
	text, err := os.ReadFile("testdata/multicluster.x-k8s.io_clusterprofiles.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	if _, err := envtest.InstallCRDs(server.Owner, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{&crd}}); err != nil {
		t.Fatal(err)
	}
	clock = clock.Add(resyncInterval)
	shows := func(want map[string]string) {
		t.Helper()
		p := look()
		if p == nil {
			t.Fatal("there is no profile")
		}
		got := map[string]string{}
		conditions, _, _ := unstructured.NestedSlice(p.Object, "status", "conditions")
		for _, c := range conditions {
			got[c.(map[string]any)["type"].(string)] = c.(map[string]any)["status"].(string)
		}
		properties, _, _ := unstructured.NestedSlice(p.Object, "status", "properties")
		for _, c := range properties {
			got[c.(map[string]any)["name"].(string)] = c.(map[string]any)["value"].(string)
		}
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%s is %q, want %q of %v", k, got[k], v, got)
			}
		}
		version := p.GetResourceVersion()
		if again := look(); again.GetResourceVersion() != version {
			t.Error("it is written though nothing changed")
		}
		if manager, _, _ := unstructured.NestedString(p.Object, "spec", "clusterManager", "name"); manager != p.GetLabels()[managerLabel] || manager == "" {
			t.Errorf("its manager is %q, its label %q", manager, p.GetLabels()[managerLabel])
		}
	}
	shows(map[string]string{"ControlPlaneHealthy": "True", "Joined": "True", idProperty: fc.Spec.ClusterID, "entente.dev/role": "Provider"})
	say(map[string]metav1.ConditionStatus{api.ConditionTrusted: "True", api.ConditionConnected: "False", api.ConditionNetwork: "False"})
	shows(map[string]string{"ControlPlaneHealthy": "Unknown", "Joined": "True", "entente.dev/Network": "False"})
	say(map[string]metav1.ConditionStatus{api.ConditionTrusted: "False"})
	if look() != nil {
		t.Error("a cluster that is trusted no longer has a profile")
	}
	theirs := profile(fc, "entente-system")
	theirs.SetOwnerReferences(nil)
	if err := owner.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	say(map[string]metav1.ConditionStatus{api.ConditionTrusted: "True"})
	if p := look(); p == nil || p.Object["status"] != nil {
		t.Error("another owner's profile was written")
	}
	if err := owner.Delete(t.Context(), fc); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

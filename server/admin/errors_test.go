package admin

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func TestAnAdmissionRuleIsARefusal(t *testing.T) {
	t.Parallel()
	const why = "the namespaces of the system and of Entente are not offloaded"
	a := newAdminTestWith(t, func(cfg *Config) {
		cfg.Client = interceptor.NewClient(cfg.Client.(ctrlclient.WithWatch), interceptor.Funcs{
			Create: func(context.Context, ctrlclient.WithWatch, ctrlclient.Object, ...ctrlclient.CreateOption) error {
				return apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("namespaceoffloadings").GroupResource(), "offloading",
					errors.New("ValidatingAdmissionPolicy 'entente-offloading' with binding 'entente-offloading' denied request: "+why))
			},
		})
	}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}})
	_, err := a.alice(t).OffloadNamespace(t.Context(), &ententev1.OffloadNamespaceRequest{Namespace: "namespaces/kube-system"})
	if got := wire.FromStatus(err); got.Reason != peering.ReasonKubernetesRefused || got.Message != "a rule of this cluster forbids it: "+why {
		t.Errorf("offload kube-system: %v", err)
	}
}

func TestAPermissionErrorNamesTheRole(t *testing.T) {
	t.Parallel()
	for user, tc := range map[string]struct {
		p    permission
		want string
	}{
		"alice":                         {permission{verb: "create", resource: resourceTokens}, "kubectl create clusterrolebinding NAME --clusterrole=entente-admin --user=alice"},
		"bob@example.com":               {permission{verb: "list", resource: resourcePeers}, "kubectl create clusterrolebinding NAME --clusterrole=entente-view --user=bob@example.com"},
		"system:serviceaccount:ci:bot":  {permission{verb: "get", resource: resourcePeers}, "kubectl create clusterrolebinding NAME --clusterrole=entente-view --serviceaccount=ci:bot"},
		"carol":                         {permission{verb: "create", resource: resourceOffloadings, namespace: "shop"}, "kubectl -n shop create rolebinding NAME --clusterrole=entente-offload --user=carol"},
		"a b; rm -rf ~":                 {permission{verb: "create", resource: resourceTokens}, "kubectl create clusterrolebinding NAME --clusterrole=entente-admin --user=NAME"},
		"system:serviceaccount:ci:b'ot": {permission{verb: "create", resource: resourceTokens}, "kubectl create clusterrolebinding NAME --clusterrole=entente-admin --user=NAME"},
	} {
		if got := tc.p.grant(user); got != tc.want {
			t.Errorf("%s: %s, want %s", user, got, tc.want)
		}
	}
}

func TestListOffloadingsHasTheStateOfEach(t *testing.T) {
	t.Parallel()
	offloading := func(namespace, state string) *v1alpha1.NamespaceOffloading {
		o := &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.NamespaceOffloadingName}}
		o.Spec.PodStrategy, o.Status.State = v1alpha1.StrategyRemote, state
		o.Status.Clusters = []v1alpha1.NamespaceInCluster{{ForeignCluster: "office", RemoteName: namespace + "-x", State: state}}
		return o
	}
	ending := offloading("ending", "Ready")
	ending.Finalizers, ending.DeletionTimestamp = []string{v1alpha1.Finalizer}, &metav1.Time{Time: metav1.Now().Time}
	c := newAdminTest(t, offloading("b", "Ready"), offloading("a", "Refused"), ending).alice(t)
	first, err := c.ListOffloadings(t.Context(), &ententev1.ListOffloadingsRequest{PageSize: 2})
	if err != nil || len(first.GetOffloadings()) != 2 {
		t.Fatalf("first page: %v, %v", first, err)
	}
	rest, err := c.ListOffloadings(t.Context(), &ententev1.ListOffloadingsRequest{PageSize: 2, PageToken: first.GetNextPageToken()})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range append(first.GetOffloadings(), rest.GetOffloadings()...) {
		got = append(got, strings.Join([]string{o.GetNamespace(), o.GetPodStrategy(), o.GetState(), o.GetClusters()[0].GetPeer(), o.GetClusters()[0].GetRemoteName()}, " "))
	}
	want := []string{"namespaces/a Remote Refused peers/office a-x", "namespaces/b Remote Ready peers/office b-x", "namespaces/ending Remote Terminating peers/office ending-x"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("offloadings (-want +got)\n%s", diff)
	}
}

func TestAPeersMessageShowsThatItsNodeIsCordoned(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("d", 32)
	contract := func(name string) *v1alpha1.Contract {
		c := &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ContractSpec{PeerID: id, ForeignCluster: "office"}}
		c.Status.Node = name
		return c
	}
	node := func(name string, cordoned bool) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelVirtualNode: "true"}},
			Spec:       corev1.NodeSpec{Unschedulable: cordoned},
		}
	}
	c := newAdminTest(t, peerObject("office", id), contract("a"), contract("b"), node("a", true), node("b", false)).alice(t)
	resp, err := c.GetPeer(t.Context(), &ententev1.GetPeerRequest{Name: "peers/office"})
	if err != nil || len(resp.GetPeer().GetContracts()) != 2 {
		t.Fatalf("%v, %v", resp, err)
	}
	if a, b := resp.GetPeer().GetContracts()[0], resp.GetPeer().GetContracts()[1]; !a.GetCordoned() || b.GetCordoned() {
		t.Errorf("cordoned: a %v, b %v", a.GetCordoned(), b.GetCordoned())
	}
}

package gauges

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func reader(t *testing.T, objects ...client.Object) client.Reader {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

func TestContractsShowWhatTheyGrantBesideWhatIsUsed(t *testing.T) {
	t.Parallel()
	amounts := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
	}
	contract := func(name, phase string) *v1alpha1.Contract {
		return &v1alpha1.Contract{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.ContractSpec{PeerID: "home", Role: v1alpha1.ContractProvider, Resources: amounts("2", "1Ki")},
			Status:     v1alpha1.ContractStatus{Phase: phase, Used: corev1.ResourceList{"cpu": resource.MustParse("500m")}},
		}
	}
	err := testutil.CollectAndCompare(OfContracts(reader(t, contract("c1", "Active"), contract("c2", "Closed"))), strings.NewReader(`
# HELP entente_contract_granted What the contract grants, in base units (cores, bytes).
# TYPE entente_contract_granted gauge
entente_contract_granted{contract="c1",peer="home",resource="cpu",role="provider"} 2
entente_contract_granted{contract="c1",peer="home",resource="memory",role="provider"} 1024
# HELP entente_contract_used What live pods use of the contract, in base units (cores, bytes), by this cluster's own count.
# TYPE entente_contract_used gauge
entente_contract_used{contract="c1",peer="home",resource="cpu",role="provider"} 0.5
entente_contract_used{contract="c1",peer="home",resource="memory",role="provider"} 0
`), "entente_contract_granted", "entente_contract_used")
	if err != nil {
		t.Error(err)
	}
}

func TestRequestsThatWaitAreCounted(t *testing.T) {
	t.Parallel()
	cluster := func(name string, trusted metav1.ConditionStatus, ids ...string) *v1alpha1.ForeignCluster {
		fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: "id-of-" + name, ApprovedRequests: []string{"approved"}, DeniedRequests: []string{"denied"}}}
		fc.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionTrusted, Status: trusted}}
		for _, id := range ids {
			fc.Status.Requests = append(fc.Status.Requests, v1alpha1.PendingRequest{ID: id})
		}
		return fc
	}
	err := testutil.CollectAndCompare(OfRequests(reader(t,
		cluster("one", metav1.ConditionTrue, "r1", "approved", "denied", "r2"), cluster("two", metav1.ConditionTrue), cluster("three", metav1.ConditionFalse, "r3"))), strings.NewReader(`
# HELP entente_requests_pending Requests of a trusted cluster that wait for an administrator to approve or deny them.
# TYPE entente_requests_pending gauge
entente_requests_pending{peer="id-of-one"} 2
entente_requests_pending{peer="id-of-two"} 0
`))
	if err != nil {
		t.Error(err)
	}
}

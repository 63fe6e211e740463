package clusterset

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
)

// A Service of an earlier ServiceImport of the same name is there until it is collected. A ServiceExport that is
// created again meanwhile gets one of its own, and a Service of another owner stays.
func TestServiceOfAnEarlierImportIsReplaced(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		owner    []metav1.OwnerReference
		labels   map[string]string
		replaced bool
	}{
		"of an earlier import": {
			owner:  []metav1.OwnerReference{{APIVersion: mcs.GroupVersion.String(), Kind: "ServiceImport", Name: "hello", UID: "earlier", Controller: new(true)}},
			labels: map[string]string{api.LabelManaged: api.Manager}, replaced: true,
		},
		"of another import": {
			owner:  []metav1.OwnerReference{{APIVersion: mcs.GroupVersion.String(), Kind: "ServiceImport", Name: "world", UID: "other", Controller: new(true)}},
			labels: map[string]string{api.LabelManaged: api.Manager},
		},
		"of an import, left behind": {labels: map[string]string{api.LabelManaged: api.Manager}},
		"of somebody":               {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMember(t, here, 1, nil, "hello")
			there := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: endpoints.SetName("hello"), OwnerReferences: test.owner, Labels: test.labels},
				Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.66"},
			}
			if err := m.c.Create(t.Context(), there); err != nil {
				t.Fatal(err)
			}
			m.settle(t)
			var i mcs.ServiceImport
			var now corev1.Service
			if err := errors.Join(m.c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "hello"}, &i), m.c.Get(t.Context(), client.ObjectKeyFromObject(there), &now)); err != nil {
				t.Fatal(err)
			}
			if replaced := metav1.IsControlledBy(&now, &i) && now.Spec.ClusterIP == ""; replaced != test.replaced {
				t.Errorf("the Service is %+v", now.ObjectMeta)
			}
			if ready := meta.IsStatusConditionTrue(i.Status.Conditions, string(mcs.ServiceImportConditionReady)); ready != test.replaced {
				t.Errorf("it is ready %t: %+v", ready, i.Status.Conditions)
			}
		})
	}
}

package services

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// A Service of an earlier ImportedService of the same name is there until it is collected.
func TestServiceOfAnEarlierImportIsReplaced(t *testing.T) {
	t.Parallel()
	earlier := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "till", Name: "accounts", Labels: map[string]string{api.LabelManaged: api.Manager},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: api.GroupVersion.String(), Kind: "ImportedService", Name: "accounts", UID: "i-0", Controller: new(true)}},
	}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "old", Port: 80}}}}
	r, say := newImports(t, foreignCluster(), contract(), imported(), earlier)
	say(nil)
	say(said())
	if got := shown(t, r); got != "Imported sql=5432 10.241.0.7:5432/true 10.241.0.8:5432/false" {
		t.Errorf("%s", got)
	}
	var svc corev1.Service
	if err := r.Client.Get(t.Context(), client.ObjectKeyFromObject(imported()), &svc); err != nil || !metav1.IsControlledBy(&svc, imported()) {
		t.Errorf("the Service is %+v: %v", svc.ObjectMeta, err)
	}
}

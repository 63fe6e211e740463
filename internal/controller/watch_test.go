package controller

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNamesOnlyDropsAnnotationsOfSecrets(t *testing.T) {
	t.Parallel()
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "token", ResourceVersion: "7", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		Annotations: map[string]string{"kubectl.kubernetes.io/last-applied-configuration": `{"stringData":{"token":"ent1.secret"}}`},
	}}
	got, err := NamesOnly(m)
	if err != nil || got != any(m) || m.Name != "token" || m.ResourceVersion != "7" || m.Annotations != nil || m.ManagedFields != nil {
		t.Errorf("remembered is %+v, %v", got, err)
	}
}

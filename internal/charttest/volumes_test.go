package charttest

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// testVolumes tries which volumes and claims the agent may write.
func (c cluster) testVolumes(t *testing.T) {
	agent := c.as(t, "entente-agent", nil)
	amount := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	volume := func(source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name("pv")},
			Spec:       corev1.PersistentVolumeSpec{Capacity: amount, AccessModes: modes, PersistentVolumeSource: source},
		}
	}
	driver := func(name string) corev1.PersistentVolumeSource {
		return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: name, VolumeHandle: "v"}}
	}
	directory := corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
	ns := newNamespace(nil)
	c.create(t, ns)
	claim := func(provisioner string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{
				Name: name("claim"), Namespace: ns.Name,
				Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": provisioner, "volume.kubernetes.io/selected-node": "n"},
			},
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: amount}},
		}
	}
	foreign, ours := volume(directory), volume(driver(v1alpha1.VolumeDriver))
	// One that a provisioner of home's made for a claim of the agent's own.
	handed := volume(directory)
	handed.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: "stand-in", UID: "u"}
	standIn := claim("example.com/other")
	standIn.Namespace = namespace
	theirs, mine := claim("example.com/other"), claim(v1alpha1.VolumeDriver)
	c.create(t, foreign, ours, handed, theirs, mine, standIn)
	patch := func(o client.Object, text string) error {
		return agent.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(text)), client.DryRunAll)
	}
	const giveBack = `{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":null}}}`
	for _, tc := range []struct {
		name string
		may  bool
		do   func() error
	}{
		{"make a volume that is a directory", false, func() error { return agent.Create(t.Context(), volume(directory), client.DryRunAll) }},
		{"make a volume of another driver", false, func() error { return agent.Create(t.Context(), volume(driver("example.com")), client.DryRunAll) }},
		{"make a volume of ours", true, func() error {
			return agent.Create(t.Context(), volume(driver(v1alpha1.VolumeDriver)), client.DryRunAll)
		}},
		{"make another's volume larger", false, func() error { return patch(foreign, `{"spec":{"capacity":{"storage":"2Gi"}}}`) }},
		{"make ours larger", true, func() error { return patch(ours, `{"spec":{"capacity":{"storage":"2Gi"}}}`) }},
		{"bind what was made for it", true, func() error {
			return patch(handed, `{"spec":{"claimRef":{"namespace":"shop","name":"data","uid":"v"},"storageClassName":"entente","persistentVolumeReclaimPolicy":"Retain"}}`)
		}},
		{"take another's volume", false, func() error {
			return patch(foreign, `{"spec":{"claimRef":{"namespace":"shop","name":"data","uid":"v"}}}`)
		}},
		{"delete what was made for it", false, func() error { return agent.Delete(t.Context(), handed, client.DryRunAll) }},
		{"make a claim of its own", true, func() error {
			c := claim("example.com/other")
			c.Namespace = namespace
			return agent.Create(t.Context(), c, client.DryRunAll)
		}},
		{"delete a claim of its own", true, func() error { return agent.Delete(t.Context(), standIn, client.DryRunAll) }},
		{"make a claim elsewhere", false, func() error { return agent.Create(t.Context(), claim("example.com/other"), client.DryRunAll) }},
		{"delete another's volume", false, func() error { return agent.Delete(t.Context(), foreign, client.DryRunAll) }},
		{"delete ours", true, func() error { return agent.Delete(t.Context(), ours, client.DryRunAll) }},
		{"return another's claim", false, func() error { return patch(theirs, giveBack) }},
		{"return ours", true, func() error { return patch(mine, giveBack) }},
		{"bind ours itself", false, func() error { return patch(mine, `{"spec":{"volumeName":"`+foreign.Name+`"}}`) }},
		{"delete a claim at home", false, func() error { return agent.Delete(t.Context(), mine, client.DryRunAll) }},
	} {
		err := tc.do()
		if tc.may && err != nil || !tc.may && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, allowed is %t", tc.name, err, tc.may)
		}
	}
}

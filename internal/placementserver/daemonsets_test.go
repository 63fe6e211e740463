package placementserver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/internal/kube"
)

// The webhook is asked about a DaemonSet with each change, and twice if others change it, too.
func TestADaemonSetIsToldOnceThatItIsKeptOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "logs", Name: "collector", UID: "1"}}
		recorder := events.NewFakeRecorder(10)
		k := NewKeptOff(fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(set).Build(), recorder)
		ctx, stop := context.WithCancel(t.Context())
		go func() { _ = k.Run(ctx) }()
		for range 2 * maxKeptOff {
			k.Add("logs", "collector")
			k.Add("logs", "refused")
		}
		time.Sleep(4 * maxKeptOff * keptOffPause)
		stop()
		synctest.Wait()
		if n := len(recorder.Events); n != 1 {
			t.Errorf("%d events, want one", n)
		}
	})
}

package e2e

import (
	"slices"
	"testing"
	"time"
)

// BenchmarkFirstTraffic measures `entente peer` between two clusters that have joined, the start of the command
// included, until it says that packets pass the tunnel. The aim is 1 s.
func BenchmarkFirstTraffic(b *testing.B) {
	const rounds, aim = 10, time.Second
	ctx, w := theStage.On(b)
	var took []time.Duration
	for range rounds {
		OK(b, w.Unpeer(ctx))
		OK(b, w.Join(ctx))
		begin := time.Now()
		out, err := w.Home.Entente(ctx, "peer", w.Abroad.Name)
		OK(b, err)
		took = append(took, time.Since(begin))
		b.Logf("%s\n%s", took[len(took)-1].Round(10*time.Millisecond), out)
		_, err = w.Peered(ctx, Soon)
		OK(b, err)
	}
	slices.Sort(took)
	met := "reached"
	if took[rounds-1] > aim {
		met = "MISSED"
	}
	b.Logf("%s  `entente peer` passes traffic within %s: median %s, most %s of %d", met, aim,
		took[rounds/2].Round(10*time.Millisecond), took[rounds-1].Round(10*time.Millisecond), rounds)
	b.ReportMetric(took[rounds/2].Seconds(), "s/median")
	b.ReportMetric(took[rounds-1].Seconds(), "s/most")
	b.ReportMetric(0, "ns/op")
}

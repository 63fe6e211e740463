package databases

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	. "github.com/entente-dev/entente/integration/e2e"
)

// postgresScript runs a server. An empty volume gets a database: a copy of that of $COPY, which it then
// follows, or a new one.
const postgresScript = `set -e
export PATH=$PATH:$POSTGRES PGDATA=/data/pg
if [ ! -s $PGDATA/PG_VERSION ]; then
	rm -rf $PGDATA
	if [ -n "$COPY" ]; then
		until pg_basebackup -h "$COPY" -U postgres -D $PGDATA -X stream -R -c fast; do rm -rf $PGDATA; sleep 1; done
	else
		printf %s "$PGPASSWORD" > /tmp/password
		initdb -U postgres -A scram-sha-256 --pwfile /tmp/password -D $PGDATA
		echo "host all all 0.0.0.0/0 scram-sha-256" >> $PGDATA/pg_hba.conf
		echo "host replication all 0.0.0.0/0 scram-sha-256" >> $PGDATA/pg_hba.conf
	fi
	chmod 700 $PGDATA
fi
exec postgres -D $PGDATA -c listen_addresses='*' -c unix_socket_directories=/tmp -c jit=off
`

// postgres is a server, and which other it copies.
func postgres(name, strategy, copies string) []ctrlclient.Object {
	return member(name, 1, strategy, postgresScript, []corev1.EnvVar{env("COPY", copies), {
		Name: "PGPASSWORD", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "postgres"}, Key: "password",
		}},
	}}, []string{"bash", "-c", "$POSTGRES/pg_isready -q -h 127.0.0.1 -U postgres"}, 5432)
}

// sql runs statements on the server of a pod, and returns what they print.
func sql(ctx context.Context, w *World, pod, text string) (string, error) {
	return w.Home.InPod(ctx, namespace, pod, "bash", "-c", `$POSTGRES/psql -h 127.0.0.1 -U postgres -qtA -v ON_ERROR_STOP=1 -c "$0"`, text)
}

// TestPostgreSQLFailsOverBetweenClusters has a primary at home and a standby abroad, lets the primary
// end while rows are written, promotes the standby by hand, and does the same the other way round. No row whose
// commit was acknowledged is lost.
func TestPostgreSQLFailsOverBetweenClusters(t *testing.T) {
	ctx, w := stage(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "postgres"}, StringData: map[string]string{"password": rand.Text()}}
	OK(t, w.Home.Create(ctx, secret))
	OK(t, w.Home.Create(ctx, postgres("pg-home", "Local", "")...))
	runs(ctx, t, w, "pg-home", 1, false)
	OK(t, w.Home.Create(ctx, postgres("pg-away", "Remote", "pg-home-0.pg-home")...))
	runs(ctx, t, w, "pg-away", 1, true)
	_, err := sql(ctx, w, "pg-home-0", "create table ledger (id bigint primary key)")
	OK(t, err)

	rows := failOver(ctx, t, w, "pg-home", "pg-away", 0)

	// What was the primary begins again as a copy of what is: its volume is another one.
	_, err = w.Home.Kubectl(ctx, "-n", namespace, "delete", "statefulset/pg-home", "pvc/data-pg-home-0", "service/pg-home", "--wait=true")
	OK(t, err)
	OK(t, w.Home.Create(ctx, postgres("pg-home", "Local", "pg-away-0.pg-away")...))
	runs(ctx, t, w, "pg-home", 1, false)
	failOver(ctx, t, w, "pg-away", "pg-home", rows)
}

// failOver writes to a primary that has a standby, lets it end, promotes the standby, and looks for each row
// that was acknowledged. It returns the number of the next row.
func failOver(ctx context.Context, t *testing.T, w *World, from, to string, next int) int {
	t.Helper()
	primary, standby := from+"-0", to+"-0"
	// From here a commit is acknowledged when the standby has it on its disk.
	for _, text := range []string{"alter system set synchronous_standby_names = '*'", "select pg_reload_conf()"} {
		_, err := sql(ctx, w, primary, text)
		OK(t, err)
	}
	OK(t, w.Until(ctx, Soon, "the standby to follow "+primary, func(ctx context.Context) (string, error) {
		state, err := sql(ctx, w, primary, "select state, sync_state from pg_stat_replication")
		if err != nil || strings.TrimSpace(state) == "streaming|sync" {
			return "", err
		}
		return "it is " + state, nil
	}))
	writing, stop := context.WithCancel(ctx)
	defer stop()
	acknowledged := make(chan []int, 1)
	go func() {
		var ids []int
		for id := next; writing.Err() == nil; id++ {
			if _, err := sql(writing, w, primary, fmt.Sprintf("insert into ledger values (%d)", id)); err == nil {
				ids = append(ids, id)
			}
		}
		acknowledged <- ids
	}()
	time.Sleep(10 * time.Second) // rows are written meanwhile
	begin := time.Now()
	_, err := w.Home.Kubectl(ctx, "-n", namespace, "scale", "statefulset/"+from, "--replicas=0")
	OK(t, err)
	runs(ctx, t, w, from, 0, false)
	stop()
	ids := <-acknowledged
	for _, text := range []string{"alter system reset synchronous_standby_names", "select pg_promote()", "select pg_reload_conf()"} {
		_, err := sql(ctx, w, standby, text)
		OK(t, err)
	}
	text, err := sql(ctx, w, standby, "select id from ledger")
	OK(t, err)
	there := map[string]bool{}
	for id := range strings.FieldsSeq(text) {
		there[id] = true
	}
	for _, id := range ids {
		if !there[strconv.Itoa(id)] {
			t.Errorf("row %d was acknowledged by %s and is not on %s", id, primary, standby)
		}
	}
	if len(ids) < 5 {
		t.Errorf("%d rows were acknowledged", len(ids))
	}
	end := next + 1_000_000
	_, err = sql(ctx, w, standby, fmt.Sprintf("insert into ledger values (%d)", end))
	OK(t, err)
	t.Logf("%s failed over to %s in %.0f s, by hand: %d rows were acknowledged, %d are there", primary, standby, time.Since(begin).Seconds(), len(ids), len(there))
	return end + 1
}

// The protocol of ssd/spec_cache.h for one slot: every statement is one atomic step, memory is sequentially
// consistent. A value carries its origin (epoch, life) so that what is read can be told from what was meant.
//
// The variable MUTATION of the environment plants one fault (0: none), PATIENT=1 replaces timed waits of the
// verify lane by waits without end.
#ifndef EPOCHS
#define EPOCHS 5
#endif
#define LIVES 2   /* sequences that come after the first */
#define NODES 2   /* of a branch, one a depth */
#define WINDOW 2  /* log positions whose features are kept */

#define FLIP_UNCHECKED 1     /* the flip does not ask for ready */
#define POST_BEFORE_FLIP 2   /* the outcome is released before the flip */
#define EPOCHS_RESTART 3     /* a new life starts again at epoch 1 */
#define EPOCH_SHARED 4       /* a new life consumes no epoch */
#define STAMP_UNCHECKED 5    /* a reader trusts the record */
#define STAMP_KEPT 6         /* the stamp is not cleared before a record is written */
#define LIFE_UNCHECKED 7     /* a reader trusts the log */
#define LIFE_LATE 8          /* born changes after the log */
#define READY_EARLY 9        /* ready is released before the branch is written */
#define DEPTH_EARLY 10       /* depth_ready rises before its node is written */
#define DEPTH_STALE 11       /* depth_ready of the last epoch stays until after ready */
#define CLAIM_UNCHECKED 12   /* a reader trusts the features */
#define CLAIM_LATE 13        /* claim rises after the features */
#define RUNS_AHEAD 14        /* the draft goes on to the other slab before the outcome */
#define MISS_IGNORED 15      /* the draft answers hits only */
#define LIFE_FIRST 16        /* a reader of features looks at born, then at claim */

byte mutation, patient;

typedef Tag { byte epoch, life }
typedef Record { byte stamp, born, length, token, hit }

// written by the verify lane
byte front, latest, born, claim;
Record record[2];
byte log[EPOCHS + 1];     // the life that wrote the position
Tag feature[WINDOW];      // epoch: the position, from 1
// written by the draft lane
byte ready[2], depth[2];
Tag key[2], node[4];      // slab * NODES + i

// what the verify lane meant, seen by assertions only
byte meant_born[EPOCHS + 2], meant_length[EPOCHS + 2], meant_hit[EPOCHS + 2];
bool verify_done, draft_done;

inline append() {
  log[length] = life;
  if
  :: mutation != CLAIM_LATE -> claim = length + 1
  :: else
  fi;
  d_step { feature[length % WINDOW].epoch = length + 1; feature[length % WINDOW].life = life };
  claim = length + 1;
  length++
}

inline post(h) {
  d_step { meant_born[round] = life; meant_length[round] = length; meant_hit[round] = h };
  if
  :: mutation != STAMP_KEPT -> record[round & 1].stamp = 0
  :: else
  fi;
  record[round & 1].born = life;
  record[round & 1].length = length;
  record[round & 1].token = round;
  record[round & 1].hit = h;
  record[round & 1].stamp = round;
  latest = round;
  round++
}

inline assign() {
  lives++;
  if
  :: mutation == EPOCHS_RESTART && lives > 1 -> round = 1; latest = 0
  :: else
  fi;
  d_step { life = life + 1; length = 0; taken = 0 };
  if
  :: mutation != LIFE_LATE -> born = life
  :: else
  fi;
  append();
  born = life;
  if
  :: mutation == EPOCH_SHARED && lives > 1
  :: else -> post(0)
  fi
}

proctype Verify() {
  byte round = 1, life, length, lives, taken, adopted, i, other, hit;
  assign();
  do
  :: round > EPOCHS || length > EPOCHS -> break
  :: else ->
     // the forward reads its inputs in place
     i = 0;
     do
     :: i < taken ->
        assert(node[front * NODES + i].epoch == adopted && node[front * NODES + i].life == life);
        i++
     :: else -> break
     od;
     // the outcome is known: wait, but not for long
     other = 1 - front;
     if
     :: ready[other] == round
     :: !patient
     fi;
     hit = 0;
     if
     :: ready[other] == round || mutation == FLIP_UNCHECKED ->
        if
        :: true ->  // the key is there
           assert(key[other].epoch == round && key[other].life == life);
           taken = depth[other];
           hit = (taken > 0)
        :: true     // it is not
        fi
     :: else
     fi;
     append();
     if
     :: hit && mutation != POST_BEFORE_FLIP -> adopted = round; front = other; post(1)
     :: hit && mutation == POST_BEFORE_FLIP -> adopted = round; post(1); front = other
     :: !hit -> taken = 0; post(0)
     fi;
     if
     :: lives <= LIVES && round <= EPOCHS -> assign()
     :: true
     fi
  od;
  verify_done = true
}

proctype Draft() {
  byte seen, e, b, l, t, h, s, i, v, intact;
  do
  :: latest > seen || (mutation == EPOCHS_RESTART && latest != seen) ->
     // the newest outcome, word by word
     e = latest;
     b = record[e & 1].born;
     l = record[e & 1].length;
     t = record[e & 1].token;
     h = record[e & 1].hit;
     if
     :: record[e & 1].stamp == e || mutation == STAMP_UNCHECKED
     :: else -> goto again  // two outcomes further meanwhile
     fi;
     assert(t == e && b == meant_born[e] && l == meant_length[e] && h == meant_hit[e]);
     seen = e;
     // catch up from the log: the life must be the same after the copy
     i = 0; intact = 1;
     do
     :: i < l -> d_step { intact = intact && (log[i] == b); i++ }
     :: else -> break
     od;
     if
     :: born == b || mutation == LIFE_UNCHECKED -> assert(intact)
     :: else -> goto again
     fi;
     // features of the newest position
     d_step { intact = (feature[(l - 1) % WINDOW].epoch == l && feature[(l - 1) % WINDOW].life == b) };
     s = born;
     v = claim;
     if
     :: (mutation == LIFE_FIRST -> s : born) == b && (v <= l - 1 + WINDOW || mutation == CLAIM_UNCHECKED) ->
        assert(intact)
     :: else
     fi;
     if
     :: mutation == MISS_IGNORED && !h -> goto again
     :: else
     fi;
     // fill the standby slab for the next outcome
     s = 1 - front;
     if
     :: mutation == READY_EARLY -> ready[s] = e + 1
     :: else
     fi;
     d_step { key[s].epoch = e + 1; key[s].life = b };
     d_step { node[s * NODES].epoch = e + 1; node[s * NODES].life = b };
     if
     :: mutation != DEPTH_STALE -> depth[s] = 1
     :: else
     fi;
     ready[s] = e + 1;
     depth[s] = 1;
     // the second depth: in time, after the flip, or never
     if
     :: true ->
        if
        :: mutation == DEPTH_EARLY -> depth[s] = 2
        :: else
        fi;
        d_step { node[s * NODES + 1].epoch = e + 1; node[s * NODES + 1].life = b };
        depth[s] = 2
     :: true
     fi;
     if
     :: mutation == RUNS_AHEAD ->
        d_step { node[(1 - s) * NODES].epoch = e + 2; node[(1 - s) * NODES].life = b }
     :: else
     fi;
     again: skip
  :: latest == seen && verify_done -> break
  od;
  draft_done = true
}

init {
  atomic {
    c_code {
      now.mutation = getenv("MUTATION") ? atoi(getenv("MUTATION")) : 0;
      now.patient = getenv("PATIENT") ? atoi(getenv("PATIENT")) : 0;
    };
    run Verify();
    run Draft()
  }
}

ltl progress { <> (verify_done && draft_done) }

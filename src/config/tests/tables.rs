//! `[[alias]]` and `[[pool]]` tables.

use super::*;
use crate::core::pool::PoolPolicy;

#[test]
fn aliases_lead_to_models() {
    let config = of_file(
        r#"
        [[alias]]
        model = "chat"
        to = [{ model = "a", weight = 9 }, { model = "b", weight = 0.5 }]

        [[alias]]
        model = "code"
        to = [{ model = "b" }]
        "#,
    )
    .expect("valid");
    let told: Vec<_> = config
        .aliases
        .iter()
        .map(|(name, to)| (name.as_str(), to.iter().map(|to| (to.model.as_str(), to.weight)).collect::<Vec<_>>()))
        .collect();
    assert_eq!(told, [("chat", vec![("a", 9.0), ("b", 0.5)]), ("code", vec![("b", 1.0)])]);
    for (to, told) in [
        ("[]", "field to: is empty; name the models that it stands for"),
        ("[{ model = 'chat' }]", "field to: names the alias itself, \"chat\": it would lead in a circle"),
        (
            "[{ model = 'code' }]",
            "field to: \"code\" is an alias too; an alias leads to models, so that none can lead in a circle",
        ),
        (
            "[{ model = 'a', weight = 0 }]",
            "field to: the weight of \"a\" is 0, allowed are numbers above 0; leave a model",
        ),
        ("[{ model = 'a', weight = -1.5 }]", "the weight of \"a\" is -1.5"),
        ("[{ model = 'a', weight = nan }]", "the weight of \"a\" is NaN"),
        ("[{ model = 'a' }, { model = 'a' }]", "field to: names \"a\" twice; add the weights"),
        ("[{ model = '' }]", "field to: the model \"\" is empty"),
        ("[{ model = ' a' }]", "the model \" a\" begins or ends with white space"),
    ] {
        let error = of_file(&format!(
            "[[alias]]\nmodel = 'code'\nto = [{{ model = 'x' }}]\n[[alias]]\nmodel = 'chat'\nto = {to}"
        ));
        let error = error.expect_err(told);
        assert!(error.starts_with("rankpin.toml, line 4: alias \"chat\": ") && error.contains(told), "{error}");
    }
    for (file, told) in [
        (
            "[[alias]]\nmodel = 'a'\nto = [{model='x'}]\n[[alias]]\nmodel = 'a'\nto = [{model='y'}]",
            "line 4: alias \"a\": there is another",
        ),
        ("[[alias]]\nmodel = 'a'\nto = 'x'", "line 3: [[alias]] to: invalid type"),
        ("[[alias]]\nmodel = 'a'\nto = [{model='x', wait=1}]", "line 3: [[alias]] to[0].wait: unknown field"),
        ("[[alias]]\nmodel = 'a'", "line 1: [[alias]]: missing field"),
        ("[alias]\nmodel = 'a'", "line 1: alias is no list of tables; write [[alias]]"),
    ] {
        let error = of_file(file).expect_err(told);
        assert!(error.starts_with("rankpin.toml, ") && error.contains(told), "{error}");
    }
}

const POOLS: &str = r#"
    [[pool]]
    name = "eu"
    namespace = "eu-1"
    weight = 3
    max_inflight = 100
    spill_over = "80%"
    models = ["b", "a"]
    trusted = true

    [[pool]]
    name = "us"
    namespace = "us"
"#;

#[test]
fn pools_are_what_a_router_at_the_global_level_places_requests_on() {
    for given in ["flag", "variable", "file"] {
        let (level, policy) = (("level", "global"), ("pool_policy", "priority"));
        let config = match given {
            "flag" => with(&[level, policy], &[], POOLS),
            "variable" => with(&[], &[("RANKPIN_LEVEL", "global"), ("RANKPIN_POOL_POLICY", "priority")], POOLS),
            _ => of_file(&format!("level = 'global'\npool_policy = 'priority'\n{POOLS}")),
        };
        let pools = config.expect(given).pools;
        assert_eq!((pools.level, pools.pools.policy), (Level::Global, PoolPolicy::Priority));
        let [eu, us] = &pools.targets[..] else { panic!("two pools: {pools:?}") };
        let told = |target: &PoolTarget| {
            let spec = &target.spec;
            (
                spec.id.to_string(),
                spec.pool.to_string(),
                target.namespace.to_string(),
                spec.subject.as_deref().map(str::to_owned),
            )
        };
        assert_eq!(told(eu), ("eu".into(), "eu".into(), "eu-1".into(), Some("eu-1.trusted".into())));
        assert_eq!(told(us), ("us".into(), "us".into(), "us".into(), Some("us.request".into())));
        let models: Vec<_> = eu.spec.models.iter().map(Model::as_str).collect();
        assert_eq!((models, eu.spec.max_inflight, us.spec.models.len()), (vec!["a", "b"], Some(100), 0));
        let rules: Vec<_> = pools.pools.rules.iter().map(|rule| (rule.weight, rule.spill_over)).collect();
        assert_eq!(rules, [(3.0, Some(80)), (1.0, None)]);
    }
    let at_workers = of_file("[[pool]]\nname = 'eu'\nspill_over = '50%'").expect("valid").pools;
    assert_eq!((at_workers.level, at_workers.targets.len(), at_workers.pools.rules.len()), (Level::Worker, 0, 1));
}

#[test]
fn pools_that_could_not_work_are_refused() {
    let global = |file: &str| with(&[("level", "global")], &[], file).expect_err(file);
    let pool = |fields: &str| format!("[[pool]]\nname = 'eu'\nnamespace = 'eu'\n{fields}");
    for (file, told) in [
        (String::new(), "--level: level is \"global\"; a router at the global level needs a [[pool]]"),
        ("[[pool]]\nname = 'eu'".into(), "line 1: pool \"eu\": field namespace: is missing"),
        ("[[pool]]\nname = 'e u'\nnamespace = 'eu'".into(), "pool \"e u\": field name: the name holds ' '"),
        ("[[pool]]\nname = 'eu'\nnamespace = 'rankpin'".into(), "field namespace: is this router's own"),
        (pool("weight = 0"), "field weight: is 0, allowed are numbers above 0"),
        (pool("max_inflight = 0"), "field max_inflight: is 0"),
        (pool("spill_over = '0.8'\nmax_inflight = 5"), "field spill_over: is \"0.8\", allowed are 1% to 100%"),
        (pool("spill_over = '80%'"), "field spill_over: can have no effect without max_inflight"),
        (pool("models = []"), "field models: is empty"),
        (pool("models = ['a', 'a']"), "field models: names a model twice"),
        (pool("region = 'x'"), "line 4: [[pool]] region: unknown field"),
        (
            pool("[[pool]]\nname = 'eu'\nnamespace = 'us'"),
            "line 4: pool \"eu\": there is another [[pool]] of this name",
        ),
        (pool("[[pool]]\nname = 'us'\nnamespace = 'eu'"), "pool \"us\": field namespace: another [[pool]] has it"),
        (
            format!("policy = 'random'\n{}", pool("")),
            "policy can have no effect: at level global the routers of each pool",
        ),
        (format!("full_at_queued = 3\n{}", pool("")), "full_at_queued can have no effect: at level global"),
        (format!("max_jobs = 3\n{}", pool("")), "max_jobs can have no effect: at level global no jobs are taken"),
        (pool("[[worker]]\nid='w'\nmodels=['m']\nsubject='s'"), "worker \"w\": can have no effect at level global"),
    ] {
        let error = global(&file);
        assert!(error.contains(told), "{error}\nexpected: {told}");
    }
    for (file, told) in [
        ("pool_policy = 'weighted'", "pool_policy can have no effect: there is no [[pool]]"),
        ("[[pool]]\nname = 'eu'\nnamespace = 'eu'", "field namespace: can have no effect at level worker"),
        ("[[pool]]\nname = 'eu'\nmax_inflight = 3", "field max_inflight: can have no effect at level worker"),
        ("level = 'pool'", "level is \"pool\"; allowed are worker, global"),
    ] {
        let error = of_file(file).expect_err(told);
        assert!(error.contains(told), "{error}");
    }
}

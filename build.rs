//! Queries are compiled against the committed `.sqlx/` folder: a build needs no database, and never asks one that
//! happens to be in `DATABASE_URL`, which in an application's build is the application's. `make prepare` sets
//! `SQLX_OFFLINE=false` to renew the folder.

fn main() {
    // the migrations are part of the library, and a new one is a change the compiler does not see by itself
    println!("cargo::rerun-if-changed=migrations");
    println!("cargo::rerun-if-env-changed=SQLX_OFFLINE");
    if std::env::var_os("SQLX_OFFLINE").is_none() {
        println!("cargo::rustc-env=SQLX_OFFLINE=true");
    }
}
